"""Where a MODEL comes from."""

from __future__ import annotations

PREFIX = "hf://"
"""How a model on the Hub begins."""


def is_hub(source: str) -> bool:
    """Whether MODEL is on the Hub; asked at every start, so it stands apart from what reads the Hub."""
    return source.startswith(PREFIX)
