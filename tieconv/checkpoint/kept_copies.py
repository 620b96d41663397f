"""The safetensors metadata entry that marks a copy of a tied tensor as intended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from tieconv.checkpoint.files.weight_file import WeightFile

KEY = "tieconv.keep"
"""The metadata key. Its value is a JSON list of the tensor names that are stored twice on purpose."""


def entry(names: Iterable[str]) -> str:
    """Return the value of the metadata entry for ``names``."""
    return json.dumps(sorted(names), ensure_ascii=False)


def names_in(metadata: Mapping[str, str] | None) -> frozenset[str]:
    """Return the tensor names that one file's metadata marks; empty if the entry is malformed."""
    try:
        value = json.loads((metadata or {}).get(KEY, "[]"))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()


def marked(files: Iterable[WeightFile]) -> frozenset[str]:
    """Return the tensor names that the metadata of any of the ``files`` marks."""
    return frozenset[str]().union(*(names_in(file.metadata) for file in files))
