"""Damage to bytes, JSON, pickles and archives, drawn from one random generator."""
