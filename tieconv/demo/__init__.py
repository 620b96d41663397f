"""Show what tying does: generate a text, train tied and untied toy models, and align their tables."""
