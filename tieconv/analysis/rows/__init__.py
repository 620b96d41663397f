"""Rows of the tables: padding, copies, tokens that training hardly touched."""
