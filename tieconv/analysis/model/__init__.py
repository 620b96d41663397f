"""The parts of a model that are analysed: two tables, the last norm, the tokens, and moments."""
