"""Guess the input embedding and the output head of an unknown architecture from names, shapes and shared storage.

`data/conventions.json` has the names. Pairs are from public projects, each with its source. Endings of single names
are in the order of their certainty, counted over the classes of transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.package_data import data_text

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Shared = Iterable[Collection[str]]
"""Groups of names with shared storage in the file."""


def guess(names: Shapes, vocabulary: int | None = None, shared: Shared = ()) -> tuple[str | None, str | None]:
    """Return the names of the input embedding and of the output head, each ``None`` if no name fits.

    ``vocabulary``, the number of tokens in the config, decides between several tables; padded tables may be larger. A
    head has as many rows, or columns, as the embedding has rows or the vocabulary has tokens.
    """
    tables = {name: shape for name, shape in names.items() if len(shape) == 2}
    conventional = next(_conventional(names, tables), None)
    if conventional is not None:
        return conventional
    embedding = best(tables, "inputs", vocabulary, None)
    head = best(tables, "heads", vocabulary, names[embedding] if embedding else None)
    if head is not None and head == embedding:
        head = None
    # An unrecognised name with shared storage completes the pair; both are from one group if none is known.
    for group in shared:
        together = [name for name in names if name in group and len(names[name]) == 2 and not _elsewhere(name)]
        unnamed = [name for name in together if _rank(name, "inputs") is None and _rank(name, "heads") is None]
        if embedding in together and head is None and unnamed:
            return embedding, unnamed[0]
        if head in together and embedding is None and unnamed:
            return unnamed[0], head
        if embedding is None and head is None and len(unnamed) > 1 and names[unnamed[0]][0] > names[unnamed[0]][1]:
            return unnamed[0], unnamed[1]
    return embedding, head


def convention(embedding: str | None, head: str | None) -> str:
    """Return the project that uses these two names, or an empty text."""
    if embedding is None or head is None:
        return ""
    return next((pair.project for pair in pairs() if pair.fits(embedding, head)), "")


def biases(names: Shapes, head: str | None) -> tuple[str, ...]:
    """Return the output biases of a head, and logit-bias rows; the outer name of an aliased pair is first."""
    stored = []
    if head is not None:
        outer = head.removesuffix(".decoder.weight") + ".bias"
        inner = head.removesuffix("weight") + "bias"
        stored = [name for name in (outer, inner) if names.get(name, ())[:1] == names.get(head, (0,))[:1]]
    stored += [name for name in names if name.split(".")[-1] == "final_logits_bias"]
    return tuple(dict.fromkeys(stored))


def _conventional(names: Shapes, tables: Shapes) -> Iterator[tuple[str, str]]:
    """Yield pairs of ``tables`` with the names of a public project and shapes that fit; the shortest first."""
    matrices: dict[str, list[str]] = {}
    for name in tables:
        if not _elsewhere(name):
            matrices.setdefault(tail(name), []).append(name)
    for pair in pairs():
        embeddings, heads = (
            [name for name in matrices.get(end.tail, ()) if end.matches(name)] for end in (pair.embedding, pair.head)
        )
        if not (embeddings and heads and all(any(mark in name for name in names) for mark in pair.marks)):
            continue
        fits = [(e, h) for e in embeddings for h in heads if e != h and _is_head(names[h], names[e], None)]
        yield from sorted(fits, key=lambda names: (len(names[0]) + len(names[1]), names))[:1]


def _elsewhere(name: str) -> bool:
    return not towers().isdisjoint(name.split("."))


def _is_head(shape: Shape, embedding: Shape | None, vocabulary: int | None) -> bool:
    """Return whether a matrix has the rows of the vocabulary, or is the transpose of the embedding's shape."""
    sizes = {size for size in (vocabulary, embedding[0] if embedding else None) if size}
    return shape[0] in sizes or (embedding is not None and shape == embedding[::-1])


def best(tables: Shapes, kind: str, vocabulary: int | None, like: Shape | None) -> str | None:
    """Return the best candidate: by fit to the vocabulary and shape, then by ending, then the shortest path."""
    ranked = []
    for name, shape in tables.items():
        if not name.endswith(".weight"):
            continue
        rank = _rank(name, kind)
        if rank is None or _elsewhere(name):
            continue
        if kind == "heads" and (like or vocabulary or rank) and not _is_head(shape, like, vocabulary):
            continue
        misfit = (shape[0] != vocabulary if vocabulary else 0) + (like is not None and shape != like)
        ranked.append((misfit, rank, "encoder" in name.split("."), name.count("."), name))
    return min(ranked)[-1] if ranked else None


def _rank(name: str, kind: str) -> int | None:
    path = name.removesuffix(".weight")
    return next((rank for rank, ending in enumerate(_compiled(kind)) if ending.search(path)), None)


@cache
def _compiled(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?:^|\.)(?:{ending})$") for ending in endings(kind))


# Read the names of embeddings and heads in public projects from `data/conventions.json`.
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
            row["project"], row["source"], _ending(row["embedding"]), _ending(row["head"]), tuple(row.get("marks", ()))
        )
        for row in _data()["pairs"]
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
