"""Prove relations over every byte: equal, transposed, cast, scaled, near, and the resulting duplicates."""
