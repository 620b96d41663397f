"""Rows of the tables: padding, copies, tokens that look untrained."""
