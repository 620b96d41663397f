"""Define the batches that a graph is measured on: their shapes, their padding and their tokens."""
