"""What was measured of each loader release, or read from its source: one JSON file a release in ``data/``.

A file says with which release and how; ``about`` explains each entry of ``tables``: names of classes or model types,
or names by model type. `fixtures/loaders.py` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tieconv.package_data import data_text


@cache
def _tables(release: str) -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(data_text(__name__, f"{release}.json"))["tables"]
    return tables


@cache
def names(release: str, table: str) -> frozenset[str]:
    """Return the classes or model types of one table; none where the release has no such table."""
    return frozenset(_tables(release).get(table, ()))


def by_type(release: str, table: str) -> Mapping[str, Any]:
    """Return what one table gives for each model type."""
    entries: Mapping[str, Any] = _tables(release)[table]
    return entries


def kind(release: str, name: str) -> str | None:
    """Return the table that lists a class; ``None`` where the source of its class was not read."""
    lists = ((table, entry) for table, entry in _tables(release).items() if isinstance(entry, list))
    return next((table for table, entry in lists if name in entry), None)
