"""Read a MODEL from a local directory, from the Hub or from an object store."""

from __future__ import annotations

PREFIX = "hf://"
"""Prefix of a model on the Hub."""
OBJECT_PREFIXES = ("s3://", "gs://", "az://")
"""Prefixes of a model in an object store: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage."""


def is_hub(source: str) -> bool:
    """Return whether MODEL is on the Hub. Imports nothing, because every command calls it."""
    return source.startswith(PREFIX)


def is_object(source: str) -> bool:
    """Return whether MODEL is in an object store."""
    return source.startswith(OBJECT_PREFIXES)


def is_remote(source: str) -> bool:
    """Return whether MODEL is on the Hub or in an object store."""
    return source.startswith((PREFIX, *OBJECT_PREFIXES))


def is_pattern(source: str) -> bool:
    """Return whether MODEL is a pattern for models of one owner (``hf://org/*``)."""
    return is_hub(source) and bool(set("*?") & set(source))


def is_prefix(source: str) -> bool:
    """Return whether an address means the models below it: it ends in a slash, or is a pattern."""
    return is_object(source) and (source.endswith("/") or bool(set("*?[") & set(source)))


def is_inside(name: str) -> bool:
    """Return whether a name from a server is a relative path that stays inside its directory on every file system."""
    parts = name.split("/")
    return "\\" not in name and "\0" not in name and not any(part in ("", ".", "..") for part in parts)
