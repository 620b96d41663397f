"""A check as JSON."""

from __future__ import annotations

from tieconv.checkpoint.checked import CheckReport


def render(report: CheckReport) -> str:
    """The document of schema `tieconv.check/1`."""
    return str(report)
