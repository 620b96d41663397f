"""Proofs over every byte: equal, transposed, cast, scaled, near, and the duplicates that follow."""
