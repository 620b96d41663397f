"""What is analysed: the two tables, the last norm, the tokens, and one pass of moments."""
