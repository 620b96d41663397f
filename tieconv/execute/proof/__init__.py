"""Proofs on the bytes that were written."""
