"""Tables of each loader release, measured or read from its source: one JSON file for each release in ``data/``.

``release`` and ``measured`` say with which release and how. ``about`` explains each entry of ``tables``. An entry lists
classes or model types, or maps model types to names. `fixtures/loaders.py` writes the files.
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
    """Return the classes or model types in one table; the empty set if the release has no such table."""
    return frozenset(_tables(release).get(table, ()))


def by_type(release: str, table: str) -> Mapping[str, Any]:
    """Return the values of one table by model type."""
    entries: Mapping[str, Any] = _tables(release)[table]
    return entries


def kind(release: str, name: str) -> str | None:
    """Return the name of the table that lists a class, or ``None`` if no table does."""
    lists = ((table, entry) for table, entry in _tables(release).items() if isinstance(entry, list))
    return next((table for table, entry in lists if name in entry), None)
