"""Read the names of embeddings and heads in public projects from `data/conventions.json`."""

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
    """The end of a tensor name in whole segments; ``tail`` is its last two segments."""

    pattern: re.Pattern[str]
    tail: str

    def matches(self, name: str) -> bool:
        """Return whether ``name`` has this end."""
        return self.pattern.search(name) is not None


@record
class Pair:
    """A project's names for the embedding and the head; ``marks`` are parts of other names in its files."""

    project: str
    source: str
    embedding: Ending
    head: Ending
    marks: tuple[str, ...]

    def fits(self, embedding: str, head: str) -> bool:
        """Return whether the project uses both names."""
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
    """Return the path segments of modules with separate token tables."""
    return frozenset(_data()["elsewhere"])


def tail(name: str) -> str:
    """Return the last two segments of a name."""
    return ".".join(name.split(".")[-2:])


def _ending(name: str) -> Ending:
    """Return the pattern of a name with any prefix; ``#`` is a number."""
    literal = re.escape(name).replace(re.escape("#"), "[0-9]+")
    return Ending(re.compile(rf"(?:^|\.){literal}$"), tail(name))


@cache
def _data() -> Mapping[str, Any]:
    names: Mapping[str, Any] = json.loads(data_text(__name__, "conventions.json"))
    return names
