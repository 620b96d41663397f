"""Decide which findings count, record why others are waived, and apply safe remedies."""
