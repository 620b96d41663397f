"""The shipped tables: one line a class, and only the line that is asked for is parsed.

Keys of a class record (``data/transformers5.json``):
``type`` model_type, ``prefix`` base_model_prefix, ``in`` and ``out`` the input and output embedding,
``bias`` output biases, ``row`` whether they are rows, ``groups`` lists of role, canonical name, members and
gated, ``renames`` pairs of file and memory name, ``levels`` and ``truth`` as in ``Family``, ``tying``,
``means`` the flag's meaning in transformers 5, ``unflippable`` the reason why the tied names cannot be listed,
``misfit`` true where a head of its own has another shape than the table that the tied one uses,
``notes`` what the measurement could not do.
Keys of a model_type record (``data/transformers4.json``): ``default`` and ``level`` of the flag, ``means``.
The record named by the empty string is the header of its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Role, TieGroup, Tying


@cache
def _text(version: int) -> str:
    # The loader's own method: it works from a zip too, and importlib.resources costs 10 ms to import.
    assert __spec__ is not None
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), "data", f"transformers{version}.json"))
    return data.decode()


@cache
def record(version: int, name: str) -> Mapping[str, Any] | None:
    """One record of the table of transformers 4 or 5, or ``None``."""
    text = _text(version)
    key = f"\n{json.dumps(name)}: "
    start = text.find(key)
    if start < 0:
        return None
    start += len(key)
    found: Mapping[str, Any] = json.loads(text[start : text.index("\n", start)].rstrip(","))
    return found


def measured_with(version: int) -> str:
    """The transformers release that the table of a major version was measured with."""
    header = record(version, "")
    assert header is not None
    return str(header["transformers"])


def main_class(model_type: str) -> str | None:
    """The class that a config of this type most likely means where it names none."""
    header = record(5, "")
    assert header is not None
    name: str | None = header["types"].get(model_type)
    return name


def names() -> tuple[str, ...]:
    """All class names of the table."""
    return tuple(name for name in json.loads(_text(5)) if name)


def load(architecture: str) -> Family | None:
    """The family of a class in the table."""
    raw = record(5, architecture)
    if not architecture or raw is None:
        return None
    older = record(4, raw["type"]) or {}
    return Family(
        architecture=architecture,
        model_type=raw["type"],
        knowledge=Knowledge.TABLE,
        tying=Tying(raw["tying"]),
        prefix=raw["prefix"],
        input_embedding=raw["in"],
        output_head=raw["out"],
        output_biases=tuple(raw["bias"]),
        bias_is_row=raw["row"],
        groups=tuple(
            TieGroup(Role(role), canonical, tuple(members), gated) for role, canonical, members, gated in raw["groups"]
        ),
        renames=tuple((stored, memory) for stored, memory in raw["renames"]),
        levels=tuple(raw["levels"]),
        truth=raw["truth"],
        default_v4=older.get("default"),
        meaning_v4=FlagMeaning(older.get("means", "storage")),
        meaning_v5=FlagMeaning(raw["means"]),
        level_v4=older.get("level"),
        unflippable=raw.get("unflippable"),
        misfit=raw.get("misfit", False),
    )
