"""Find matrices that a graph holds more than once, by their content and never by a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

import onnx_ir as ir

from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord
from tieconv.inspection.duplicates import find_duplicates
from tieconv.inspection.equality import relate_cast
from tieconv.inspection.numeric.bits import FORMATS, Pair, is_nan
from tieconv.inspection.view_reader import one_way, readable
from tieconv.onnx.graph.model import Stored


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


# Find the nodes that read an initializer, also through Transpose and Identity nodes.


_STANDARD = ("", "ai.onnx")
MATRIX = 2
SMALL = 8
"""Most elements of a constant that counts as a shape or a number, not as a tensor."""


@record
class Use:
    """Input ``index`` of ``node`` reads the matrix. ``flipped``: it reads the transpose.

    ``node`` is ``None`` if the matrix itself is an output of the graph. ``dtype`` is the type that the node reads; the
    graph may not declare the type behind a Transpose.
    """

    node: ir.Node | None
    index: int
    flipped: bool
    dtype: ir.DataType | None = None


def is_standard(node: ir.Node, *names: str) -> bool:
    """Return whether the node is one of the standard operators ``names``."""
    return node.domain in _STANDARD and node.op_type in names


def uses_of(value: ir.Value, *, flipped: bool = False, dtype: ir.DataType | None = None) -> Iterator[Use]:
    """Yield the nodes that compute with the value, of type ``dtype``, also through Transpose and Identity."""
    dtype = dtype or value.dtype
    if value.is_graph_output():
        yield Use(None, 0, flipped, dtype)
    for node, index in tuple(value.uses()):
        if _passes_on(node):
            yield from uses_of(node.outputs[0], flipped=flipped != is_standard(node, "Transpose"), dtype=dtype)
        else:
            yield Use(node, index, flipped, dtype)


def _passes_on(node: ir.Node) -> bool:
    if is_standard(node, "Identity"):
        return True
    perm = node.attributes.get("perm")
    return is_standard(node, "Transpose") and (perm is None or list(perm.as_ints()) == [1, 0])


def remove_unread(value: ir.Value) -> None:
    """Remove the Transpose and Identity nodes behind the value that no other node reads."""
    for node, _ in tuple(value.uses()):
        if _passes_on(node) and node.graph is not None:
            remove_unread(node.outputs[0])
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                node.graph.remove(node, safe=True)


def drop(node: ir.Node) -> None:
    """Remove a node that no other node reads, and the constants and shapes that only it read."""
    if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
        return
    inputs = [value for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for value in inputs:
        drop_unread(value)


def drop_unread(value: ir.Value) -> None:
    """Remove a small constant or the nodes of a shape if nothing reads them. A matrix is never removed."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if producer is not None:
        if is_standard(producer, "Constant", "Concat", "Slice", "Shape", "Reshape"):
            drop(producer)
    elif value.is_initializer() and isinstance(value.graph, ir.Graph):
        tensor = value.const_value
        if tensor is not None and tensor.size <= SMALL:
            value.graph.initializers.pop(str(value.name))


def integer(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def describe(node: ir.Node | None) -> str:
    """Return the node as a phrase for a report."""
    if node is None:
        return "the graph, as an output"
    return f"{node.op_type} {node.name or node.outputs[0].name}"
