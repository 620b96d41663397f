"""The names of embeddings and heads in public projects, from `data/conventions.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.package_data import data_text


@record
class Ending:
    """The end of a tensor's name, whole segments; ``tail`` are its last two."""

    pattern: re.Pattern[str]
    tail: str

    def matches(self, name: str) -> bool:
        """Return whether ``name`` ends so."""
        return self.pattern.search(name) is not None


@record
class Pair:
    """The names that a project gives the embedding and the head; ``marks`` are parts of names beside them."""

    project: str
    source: str
    embedding: Ending
    head: Ending
    marks: tuple[str, ...]

    def fits(self, embedding: str, head: str) -> bool:
        """Return whether the two names are those of the project."""
        return self.embedding.matches(embedding) and self.head.matches(head)


@cache
def pairs() -> tuple[Pair, ...]:
    """Return the pairs, the most specific first."""
    return tuple(
        Pair(
            project=entry["project"],
            source=entry["source"],
            embedding=_ending(entry["embedding"]),
            head=_ending(entry["head"]),
            marks=tuple(entry.get("marks", ())),
        )
        for entry in _data()["pairs"]
    )


@cache
def endings(kind: str) -> tuple[str, ...]:
    """Return the patterns of single names, ``inputs`` or ``heads``, the surest first."""
    return tuple(_data()[kind])


@cache
def towers() -> frozenset[str]:
    """Return the segments of paths to modules that have token tables of their own."""
    return frozenset(_data()["elsewhere"])


def tail(name: str) -> str:
    """Return the last two segments of a name."""
    return ".".join(name.split(".")[-2:])


def _ending(name: str) -> Ending:
    """The name with any prefix before it; ``#`` is a number."""
    literal = re.escape(name).replace(re.escape("#"), "[0-9]+")
    return Ending(re.compile(rf"(?:^|\.){literal}$"), tail(name))


@cache
def _data() -> Mapping[str, Any]:
    names: Mapping[str, Any] = json.loads(data_text(__name__, "conventions.json"))
    return names
