"""Matrices that a graph holds more than once, found by their content and never by a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tieconv.checkpoint.dtypes import FLOATS
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.model_files import ByteReader, TensorRecord
from tieconv.inspection.duplicates import find_duplicates
from tieconv.inspection.numeric.bits import FORMATS, Pair, is_nan
from tieconv.inspection.relation import relate_cast
from tieconv.inspection.views import one_way, readable
from tieconv.onnx.graph.initializers import Stored


@dataclass(frozen=True)
class Member:
    """One stored copy. ``flipped`` where it is the transposed of the group's first member."""

    stored: Stored
    flipped: bool


@dataclass(frozen=True)
class Group:
    """Stored tensors with the same values; ``kinds`` are the relations that were proved among them."""

    members: tuple[Member, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class _Link:
    one: str
    two: str
    flipped: bool
    kind: str


def find_groups(reader: ByteReader, stored: Sequence[Stored]) -> list[Group]:
    """Groups of at least two, proved over every byte; casts only where both directions are exact."""
    by_name = {entry.record.name: entry for entry in stored}
    records = [entry.record for entry in stored]
    groups: list[dict[str, bool]] = []
    kinds: list[set[str]] = []
    for link in _links(reader, records):
        _join(groups, kinds, link)
    found = [
        Group(tuple(Member(by_name[name], flipped) for name, flipped in group.items()), tuple(sorted(kind)))
        for group, kind in zip(groups, kinds, strict=True)
    ]
    return [_ordered(group) for group in found]


def _ordered(group: Group) -> Group:
    """The members in the order of the graph, each relative to the first."""
    members = sorted(group.members, key=lambda member: int(member.stored.record.name.split(":", 1)[0]))
    first = members[0].flipped
    return Group(tuple(Member(member.stored, member.flipped != first) for member in members), group.kinds)


def _join(groups: list[dict[str, bool]], kinds: list[set[str]], link: _Link) -> None:
    one = next((group for group in groups if link.one in group), None)
    two = next((group for group in groups if link.two in group), None)
    if one is None:
        one = {link.one: False}
        groups.append(one)
        kinds.append(set())
    place = next(i for i, group in enumerate(groups) if group is one)
    kinds[place].add(link.kind)
    if two is one:
        return
    turn = one[link.one] != link.flipped
    if two is None:
        one[link.two] = turn
        return
    turn = turn != two[link.two]
    other = next(i for i, group in enumerate(groups) if group is two)
    one.update({name: flipped != turn for name, flipped in two.items()})
    kinds[place] |= kinds[other]
    del groups[other], kinds[other]


def _links(reader: ByteReader, records: list[TensorRecord]) -> Iterator[_Link]:
    by_name = {record.name: record for record in records}
    leaders = set(by_name)
    for duplicate in find_duplicates(reader, records):
        first, *rest = duplicate.tensors
        if duplicate.kind is State.CAST:
            continue
        if duplicate.kind is State.TRANSPOSED and 1 in by_name[first].shape:
            continue
        for name in rest:
            yield _Link(first, name, duplicate.kind is State.TRANSPOSED, _KINDS[duplicate.kind])
            leaders.discard(name)
    yield from _casts(reader, [record for record in records if record.name in leaders])


_KINDS = {State.IDENTICAL: "identical", State.ALIASED: "identical", State.TRANSPOSED: "transposed"}


def _casts(reader: ByteReader, records: list[TensorRecord]) -> Iterator[_Link]:
    """Float matrices of two types, as they lie or transposed, each the exact cast of the other."""
    floats = [record for record in records if record.dtype in FLOATS and len(record.shape) == 2]
    for one, two in combinations(floats, 2):
        if one.dtype == two.dtype:
            continue
        if one.shape == two.shape and _exact_cast(reader, one, two):
            yield _Link(one.name, two.name, False, "cast")
        elif one.shape == two.shape[::-1] and _exact_cast(reader, *one_way(one, two)):
            yield _Link(one.name, two.name, True, "cast")


def _exact_cast(reader: ByteReader, one: TensorRecord, two: TensorRecord) -> bool:
    reader, (one, two) = readable(reader, (one, two))
    relation = relate_cast(reader, one, two)
    if relation is None or not relation.lossless:
        return False
    # A runtime's Cast need not keep the payload of a NaN.
    return not any(is_nan(block, FORMATS[one.dtype]).any() for block, _ in Pair(reader, one, two).pieces())
