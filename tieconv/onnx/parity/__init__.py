"""Parity: weight identity, structure, logits and cached steps of a graph against the torch reference."""
