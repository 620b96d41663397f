"""Explain a failed graph: try the model's numbers in place of the graph's constants."""
