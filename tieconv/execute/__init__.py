"""Carry out a plan: write beside OUT, verify what was written, rename once."""
