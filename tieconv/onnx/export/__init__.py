"""Export a model: trace it, store the tied matrix once, and verify the graph."""
