"""Predict how transformers 4 and 5 load and tie tensors."""
