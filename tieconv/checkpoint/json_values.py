"""Values as JSON has them, and records that print as their document."""

from __future__ import annotations

import json
from math import isfinite


def plain(value: object) -> object:
    """JSON-ready: tuples as lists, non-finite numbers (which JSON lacks) as text."""
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


class Printed:
    """A record whose ``str()`` is the JSON of its `to_dict`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """The document of the record's schema."""
        raise NotImplementedError

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
