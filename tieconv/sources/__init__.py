"""Read a MODEL from a local directory or from the Hub."""

from __future__ import annotations

PREFIX = "hf://"
"""Prefix of a model on the Hub."""


def is_hub(source: str) -> bool:
    """Return whether MODEL is on the Hub. Imports nothing, because every command calls it."""
    return source.startswith(PREFIX)
