"""Verify the bytes that were written."""
