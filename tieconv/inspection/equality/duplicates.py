"""Find every duplicate among a set of tensors, each proved over all of its bytes.

Only one tensor of each class of equal tensors is compared with other shapes and types.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from math import isfinite

from tieconv.checkpoint.files.dtypes import BITS, FLOATS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.tie_group import Duplicate
from tieconv.inspection.blocks import ANNOUNCED, Piece, announce, read
from tieconv.inspection.equality.equal_classes import equal_classes
from tieconv.inspection.equality.pair_work import PairWork, cross_pairs
from tieconv.inspection.equality.relation import relate_cast
from tieconv.inspection.equality.transposition import transposable, transposed
from tieconv.inspection.sharing import sharing
from tieconv.inspection.view_reader import readable

_EDGE_ELEMENTS = 4
"""Elements at each end that must nearly agree before a cast is tried."""

# Rounding to BF16 moves a value by at most 2**-9 of it, to F16 near zero by at most 2**-25.
_CAST_RELATIVE, _CAST_ABSOLUTE = 2.0**-8, 2.0**-24

_Class = tuple[TensorRecord, ...]


def find_duplicates(
    reader: ByteReader,
    tensors: Sequence[TensorRecord],
    *,
    known: Iterable[frozenset[str]] = (),
    min_bytes: int = 0,
) -> tuple[Duplicate, ...]:
    """Return the duplicates among ``tensors``, in the order of their first names.

    Leaves out tensors without bytes or with fewer than ``min_bytes``, and what ``known`` groups of names already say.
    Names of one byte range are `aliased`; further ranges with those bytes make the group `identical`. ``bytes_wasted``
    is what need not be stored; for a cast, the narrower side. Raises what the reader raises.
    """
    reported = _Known(known)
    reader, tensors = readable(reader, tensors)
    large = [tensor for tensor in tensors if tensor.nbytes >= max(min_bytes, 1)]
    classes = sorted((_by_name(group) for group in equal_classes(reader, large)), key=lambda group: group[0].name)
    duplicates = [
        *_identical(classes, reported),
        *_transposed(reader, classes, reported),
        *_cast(reader, classes, reported),
    ]
    return tuple(sorted(duplicates, key=lambda duplicate: duplicate.tensors))


class _Known:
    """Names that other reports already say are one tensor."""

    def __init__(self, groups: Iterable[frozenset[str]]) -> None:
        self.leader: dict[str, str] = {}
        for group in groups:
            leaders = {self.leader.get(name, name) for name in group}
            first = min(leaders)
            for name in [*group, *(known for known, to in self.leader.items() if to in leaders)]:
                self.leader[name] = first

    def unit(self, name: str) -> str:
        return self.leader.get(name, name)

    def joins(self, left: _Class, right: _Class) -> bool:
        """Return whether a known group already holds a member of both classes."""
        return not {self.unit(tensor.name) for tensor in left}.isdisjoint(self.unit(tensor.name) for tensor in right)


def _by_name(group: Iterable[TensorRecord]) -> _Class:
    return tuple(sorted(group, key=lambda tensor: tensor.name))


def _identical(classes: Iterable[_Class], reported: _Known) -> Iterator[Duplicate]:
    for group in classes:
        units = {reported.unit(tensor.name) for tensor in group}
        if len(units) < 2:
            continue
        copies = len({tensor.range for tensor in group})
        # The waste of a known group of k copies is reported with that group.
        reported_copies = sum(count - 1 for count in _copies_by_unit(group, reported).values())
        wasted = max(copies - 1 - reported_copies, 0) * group[0].nbytes
        names = tuple(tensor.name for tensor in group)
        yield Duplicate(State.IDENTICAL if copies > 1 else State.ALIASED, names, wasted)


def _copies_by_unit(group: _Class, reported: _Known) -> dict[str, int]:
    ranges = defaultdict(set)
    for tensor in group:
        ranges[reported.unit(tensor.name)].add(tensor.range)
    return {unit: len(copies) for unit, copies in ranges.items()}


def _transposed(reader: ByteReader, classes: Sequence[_Class], reported: _Known) -> Iterator[Duplicate]:
    """Yield transposed pairs of classes.

    Transposing keeps the first and the last element in position, so only classes with equal ones are compared.
    """
    for bucket in _buckets(classes, _transposable_form):
        if not _has_partners(bucket):
            continue
        _announce_ends(reader, bucket, 1)
        for alike in _buckets(bucket, lambda group: _end_elements(reader, group[0])):
            work = PairWork(alike)
            for left, right in combinations(alike, 2):
                work.spend(left[0], right[0])
                view = sharing(left[0], right[0]) is not None
                if not reported.joins(left, right) and (view or transposed(reader, left[0], right[0])):
                    yield Duplicate(State.TRANSPOSED, (left[0].name, right[0].name), 0 if view else right[0].nbytes)


def _transposable_form(group: _Class) -> Hashable | None:
    tensor = group[0]
    fits = len(tensor.shape) == 2 and BITS.get(tensor.dtype, 1) % 8 == 0
    return (tensor.dtype, tuple(sorted(tensor.shape))) if fits else None


def _has_partners(bucket: Sequence[_Class]) -> bool:
    first = bucket[0][0]
    return any(transposable(first, group[0]) for group in bucket[1:])


def _end_elements(reader: ByteReader, tensor: TensorRecord) -> Hashable:
    return tuple(bytes(read(reader, *end)) for end in _ends(tensor, 1))


def _ends(tensor: TensorRecord, elements: int) -> tuple[Piece, Piece]:
    """Return the first and the last ``elements`` elements."""
    size = min(elements, tensor.elements) * (BITS[tensor.dtype] // 8)
    return (tensor.range, 0, size), (tensor.range, tensor.nbytes - size, size)


def _announce_ends(reader: ByteReader, classes: Iterable[_Class], elements: int) -> None:
    ends = [end for group in classes for end in _ends(group[0], elements)]
    if len(ends) <= 2 * ANNOUNCED:
        announce(reader, ends)


def _cast(reader: ByteReader, classes: Sequence[_Class], reported: _Known) -> Iterator[Duplicate]:
    """Yield cast pairs of classes, widest type first; a class is the narrow side of one pair only."""
    for bucket in _buckets(classes, lambda group: group[0].shape if group[0].dtype in FLOATS else None):
        if len({group[0].dtype for group in bucket}) < 2:
            continue
        _announce_ends(reader, bucket, _EDGE_ELEMENTS)
        edges = {group[0].name: _edges(reader, group[0]) for group in bucket}
        narrowed: set[str] = set()
        bucket.sort(key=lambda group: (-BITS[group[0].dtype], group[0].name))
        work = PairWork(bucket)
        for left, right in cross_pairs(bucket):
            pair = (left[0], right[0])
            if narrowed.isdisjoint(tensor.name for tensor in pair) and _may_be_cast(edges, *pair):
                work.spend(*pair)
                relation = None if reported.joins(left, right) else relate_cast(reader, *pair)
                if relation:
                    narrow = left[0] if relation.narrow == left[0].name else right[0]
                    narrowed.add(narrow.name)
                    names = tuple(sorted((left[0].name, right[0].name)))
                    yield Duplicate(State.CAST, names, min(left[0].nbytes, right[0].nbytes))


def _may_be_cast(edges: dict[str, list[float]], left: TensorRecord, right: TensorRecord) -> bool:
    return left.dtype != right.dtype and all(
        not (isfinite(a) and isfinite(b)) or abs(a - b) <= max(abs(a), abs(b)) * _CAST_RELATIVE + _CAST_ABSOLUTE
        for a, b in zip(edges[left.name], edges[right.name], strict=True)
    )


def _edges(reader: ByteReader, tensor: TensorRecord) -> list[float]:
    """Return the first and the last few values."""
    raw = b"".join(read(reader, *end) for end in _ends(tensor, _EDGE_ELEMENTS))
    if tensor.dtype == "BF16":
        raw = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
    code = {"F16": "e", "BF16": "f", "F32": "f", "F64": "d"}[tensor.dtype]
    return [value for (value,) in struct.iter_unpack(f"<{code}", raw)]


def _buckets(classes: Iterable[_Class], key: Callable[[_Class], Hashable | None]) -> list[list[_Class]]:
    """Return the classes by key, without those whose key is ``None`` and those without a partner."""
    grouped: dict[Hashable, list[_Class]] = defaultdict(list)
    for group in classes:
        grouped[key(group)].append(group)
    return [bucket for value, bucket in grouped.items() if value is not None and len(bucket) > 1]
