"""What each loader's source says of each model class it has: lists, read from its release and shipped as data.

``data/classes.json`` maps a loader to lists of class names (model types for mlx-lm and transformers) by how the class
loads its head, in words that the loader's module explains. `fixtures/loaders.py` reads the lists from the sources.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    # The loader's own method: it works from a zip too.
    assert __spec__ is not None
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), "data", "classes.json"))
    table: dict[str, dict[str, list[str]]] = json.loads(data)
    return table


def listed(loader: str, kind: str) -> list[str]:
    """The names of one list."""
    return _table()[loader][kind]


def kind(loader: str, name: str) -> str | None:
    """The list that a class is in; ``None`` where the source of its class was not read."""
    return next((kind for kind, names in _table()[loader].items() if name in names), None)
