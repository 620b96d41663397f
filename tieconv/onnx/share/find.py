"""Find matrices that a graph holds more than once, by their content and never by a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.value_type import record
from tieconv.inspection.equality.duplicates import find_duplicates
from tieconv.inspection.equality.relation import relate_cast
from tieconv.inspection.numeric.bits import FORMATS, Pair, is_nan
from tieconv.inspection.view_reader import one_way, readable
from tieconv.onnx.graph.initializers import Stored
from tieconv.onnx.share.uses import MATRIX


@record
class Member:
    """One stored copy. ``flipped``: it is the transpose of the group's first member."""

    stored: Stored
    flipped: bool


@record
class Group:
    """Stored tensors with the same values; ``kinds`` are the relations that were proved between them."""

    members: tuple[Member, ...]
    kinds: tuple[str, ...]


def by_rows(stored: Stored) -> Stored:
    """Return codes of a quantised matrix with two sides, so that they are compared in whatever shape they are stored.

    Other tensors are returned unchanged.
    """
    shape = stored.record.shape
    if stored.record.dtype != "U8" or len(shape) <= MATRIX:
        return stored
    flat = replace(stored.record, shape=(shape[0], prod(shape[1:])))
    return Stored(stored.value, stored.graph, flat)


@record
class _Link:
    left: str
    right: str
    flipped: bool
    kind: str


def find_groups(reader: ByteReader, stored: Sequence[Stored]) -> list[Group]:
    """Return groups of at least two tensors that are equal in every byte.

    A cast counts only if it is exact in both directions.
    """
    by_name = {entry.record.name: entry for entry in stored}
    records = [entry.record for entry in stored]
    groups: list[dict[str, bool]] = []
    kinds: list[set[str]] = []
    for link in _links(reader, records):
        _join(groups, kinds, link)
    groups_found = [
        Group(tuple(Member(by_name[name], flipped) for name, flipped in group.items()), tuple(sorted(kind)))
        for group, kind in zip(groups, kinds, strict=True)
    ]
    return [_ordered(group) for group in groups_found]


def _ordered(group: Group) -> Group:
    """Return the members in the order of the graph, each relative to the first."""
    members = sorted(group.members, key=lambda member: int(member.stored.record.name.split(":", 1)[0]))
    first = members[0].flipped
    return Group(tuple(Member(member.stored, member.flipped != first) for member in members), group.kinds)


def _join(groups: list[dict[str, bool]], kinds: list[set[str]], link: _Link) -> None:
    first = next((group for group in groups if link.left in group), None)
    second = next((group for group in groups if link.right in group), None)
    if first is None:
        first = {link.left: False}
        groups.append(first)
        kinds.append(set())
    first_index = next(i for i, group in enumerate(groups) if group is first)
    kinds[first_index].add(link.kind)
    if second is first:
        return
    turn = first[link.left] != link.flipped
    if second is None:
        first[link.right] = turn
        return
    turn = turn != second[link.right]
    second_index = next(i for i, group in enumerate(groups) if group is second)
    first.update({name: flipped != turn for name, flipped in second.items()})
    kinds[first_index] |= kinds[second_index]
    del groups[second_index], kinds[second_index]


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
    """Yield float matrices of two types that are exact casts of each other, also transposed."""
    floats = [record for record in records if record.dtype in FLOATS and len(record.shape) == 2]
    for left, right in combinations(floats, 2):
        if left.dtype == right.dtype:
            continue
        if left.shape == right.shape and _exact_cast(reader, left, right):
            yield _Link(left.name, right.name, False, "cast")
        elif left.shape == right.shape[::-1] and _exact_cast(reader, *one_way(left, right)):
            yield _Link(left.name, right.name, True, "cast")


def _exact_cast(reader: ByteReader, left: TensorRecord, right: TensorRecord) -> bool:
    reader, (left, right) = readable(reader, (left, right))
    relation = relate_cast(reader, left, right)
    if relation is None or not relation.lossless:
        return False
    # A runtime's Cast may change the payload of a NaN.
    return not any(is_nan(block, FORMATS[left.dtype]).any() for block, _ in Pair(reader, left, right).pieces())
