"""Recognise file names from a server that are safe as relative paths."""

from __future__ import annotations


def is_inside(name: str) -> bool:
    """Return whether ``name`` is a relative path that stays inside its directory on every file system."""
    parts = name.split("/")
    return "\\" not in name and "\0" not in name and not any(part in ("", ".", "..") for part in parts)
