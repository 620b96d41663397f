"""Convert values to JSON; records that print as their JSON document and have a one-line ``repr``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

from tieconv.text import shown

_SOURCE = 60


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


def quoted(path: str) -> str:
    """Return ``path`` in quotes; a long path loses its beginning."""
    return shown(repr(path if len(path) <= _SOURCE else f"…{path[1 - _SOURCE :]}"), _SOURCE * 10)


class Summarised:
    """A record with a one-line ``repr`` and a small table for notebooks."""

    __slots__ = ()

    def _facts(self) -> tuple[str, ...]:
        """Return the main facts: the source, the answer, the counts."""
        raise NotImplementedError

    def _rows(self) -> Iterable[tuple[str, ...]]:
        """Yield the rows of the table that a notebook shows below the facts."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(shown(fact, _SOURCE * 10) for fact in self._facts())})"

    def _repr_html_(self) -> str:
        from tieconv.checkpoint.notebook import table

        return table(type(self).__name__, self._facts(), self._rows())


class Printed(Summarised):
    """A record whose ``str()`` is the JSON of its `to_dict`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """Return the document of the record's schema."""
        raise NotImplementedError

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
