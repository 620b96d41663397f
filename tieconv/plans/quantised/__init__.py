"""Tie and untie a quantised embedding and head. Each is one matrix in several tensors."""
