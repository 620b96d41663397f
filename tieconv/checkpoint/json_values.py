"""Convert values to JSON, and let records print as their JSON document."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def plain(value: object) -> object:
    """Return a JSON-ready value: tuples as lists, non-finite numbers (which JSON lacks) as text."""
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def stated_fields(value: DataclassInstance) -> dict[str, object]:
    """Return each field of a record by its name, JSON-ready, except those at their default."""
    values = ((entry, getattr(value, entry.name)) for entry in fields(value))
    return {entry.name: plain(content) for entry, content in values if content != entry.default}


class Printed:
    """A record whose ``str()`` is the JSON of its `to_dict`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """Return the document of the record's schema."""
        raise NotImplementedError

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
