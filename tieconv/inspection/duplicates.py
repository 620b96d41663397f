"""Find every duplicate among a set of tensors, each proved over all of its bytes.

Only one tensor of each class of equal tensors is compared with other shapes and types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import combinations
from math import isfinite
from typing import NoReturn

from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.tie_group import Duplicate
from tieconv.checkpoint.weight_file import BITS, FLOATS, TensorRecord
from tieconv.errors import RefusedError
from tieconv.inspection import view_reader
from tieconv.inspection.equality import floats_of, is_known_equal, relate_cast, transposable, transposed
from tieconv.inspection.storage import sharing
from tieconv.text import Hint, option, shown

_EDGE_ELEMENTS = 4
"""Elements at each end that must nearly agree before a cast is tried."""

# Rounding to BF16 moves a value by at most 2**-9 of it, to F16 near zero by at most 2**-25.
_CAST_RELATIVE, _CAST_ABSOLUTE = 2.0**-8, 2.0**-24

_Class = tuple[TensorRecord, ...]


def find_duplicates(
    reader: ByteReader, tensors: Sequence[TensorRecord], *, known: Iterable[frozenset[str]] = ()
) -> tuple[Duplicate, ...]:
    """Return the duplicates among ``tensors``, in the order of their first names.

    Leaves out tensors without bytes, and what ``known`` groups of names already say.
    Names of one byte range are `aliased`; further ranges with those bytes make the group `identical`. ``bytes_wasted``
    is what need not be stored; for a cast, the narrower side. Raises what the reader raises.
    """
    reported = _Known(known)
    reader, tensors = view_reader.readable(reader, tensors)
    stored = (tensor for tensor in tensors if tensor.nbytes)
    named = (tuple(sorted(group, key=lambda tensor: tensor.name)) for group in equal_classes(reader, stored))
    classes: list[_Class] = sorted(named, key=lambda group: group[0].name)
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


def _identical(classes: Iterable[_Class], reported: _Known) -> Iterator[Duplicate]:
    for group in classes:
        units = {reported.unit(tensor.name) for tensor in group}
        if len(units) < 2:
            continue
        copies = len({tensor.range for tensor in group})
        # The waste of a known group of k copies is reported with that group.
        reported_copies = len({(reported.unit(tensor.name), tensor.range) for tensor in group}) - len(units)
        wasted = max(copies - 1 - reported_copies, 0) * group[0].nbytes
        names = tuple(tensor.name for tensor in group)
        yield Duplicate(State.IDENTICAL if copies > 1 else State.ALIASED, names, wasted)


def _transposed(reader: ByteReader, classes: Sequence[_Class], reported: _Known) -> Iterator[Duplicate]:
    """Yield transposed pairs of classes.

    Transposing keeps the first and the last element in position, so only classes with equal ones are compared.
    """
    for bucket in _buckets(classes, _transposable_form):
        first = bucket[0][0]
        if not any(transposable(first, group[0]) for group in bucket[1:]):
            continue
        _announce_ends(reader, bucket, 1)
        ends = {group: tuple(bytes(view_reader.read(reader, *end)) for end in _ends(group[0], 1)) for group in bucket}
        for alike in _buckets(bucket, ends.__getitem__):
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


def _ends(tensor: TensorRecord, elements: int) -> tuple[view_reader.Piece, view_reader.Piece]:
    size = min(elements, tensor.elements) * (BITS[tensor.dtype] // 8)
    return (tensor.range, 0, size), (tensor.range, tensor.nbytes - size, size)


def _announce_ends(reader: ByteReader, classes: Iterable[_Class], elements: int) -> None:
    ends = [end for group in classes for end in _ends(group[0], elements)]
    if len(ends) <= 2 * view_reader.ANNOUNCED:
        view_reader.announce(reader, ends)


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
    raw = b"".join(view_reader.read(reader, *end) for end in _ends(tensor, _EDGE_ELEMENTS))
    return list(floats_of(raw, tensor.dtype))


def _buckets(classes: Iterable[_Class], key: Callable[[_Class], Hashable | None]) -> list[list[_Class]]:
    """Return the classes by key, without those whose key is ``None`` and those without a partner."""
    grouped: dict[Hashable, list[_Class]] = defaultdict(list)
    for group in classes:
        grouped[key(group)].append(group)
    return [bucket for value, bucket in grouped.items() if value is not None and len(bucket) > 1]


# Sort tensors into classes of equal bytes, reading each byte once.
#
# Small samples split the tensors of one type and shape. Tensors whose samples agree are then read in lockstep.

_BUFFERED = 8 * 1024 * 1024
"""Bytes that one block of every member of a group in lockstep may take in total."""

_SMALL = 6 * view_reader.SAMPLE
"""Bytes of the largest tensor, or rest of one, whose reads are announced: a tensor without samples is not larger."""

_OPEN_PARTS = 32
"""Different blocks kept for comparison at a time."""


def equal_classes(reader: ByteReader, tensors: Iterable[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Yield the tensors by type, shape and bytes: every class, those of one tensor included."""
    forms: dict[Hashable, list[TensorRecord]] = defaultdict(list)
    for tensor in tensors:
        forms[tensor.dtype, tensor.shape, tensor.nbytes].append(tensor)
    for form in forms.values():
        aliases: dict[Hashable, list[TensorRecord]] = defaultdict(list)
        for tensor in form:
            aliases[tensor.range].append(tensor)
        for stored in _split(reader, [names[0] for names in aliases.values()]):
            yield [name for tensor in stored for name in aliases[tensor.range]]


def _split(reader: ByteReader, tensors: list[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Yield classes of equal bytes among tensors of one size, by samples and then in lockstep."""
    groups = [tensors]
    for offset, size in view_reader.sample_pieces(tensors[0].nbytes):
        groups = [part for group in groups for part in _split_by_sample(reader, group, offset, size)]
    for group in groups:
        yield from _lockstep(reader, group)


def _split_by_sample(
    reader: ByteReader, group: list[TensorRecord], offset: int, size: int
) -> Iterable[list[TensorRecord]]:
    if len(group) == 1:
        return [group]
    parts: dict[int, list[TensorRecord]] = defaultdict(list)
    samples = view_reader.announced(reader, ((tensor.range, offset, size) for tensor in group))
    for tensor, sample in zip(group, samples, strict=True):
        # A hash keeps no sample in memory; after a collision the lockstep decides.
        parts[hash(bytes(sample))].append(tensor)
    return parts.values()


def _lockstep(reader: ByteReader, group: list[TensorRecord]) -> Iterator[list[TensorRecord]]:
    """Refine a partition: read all members block by block and follow each part that still agrees."""
    if len(group) == 2 and is_known_equal(reader, group[0].range, group[1].range):
        yield group
        return
    pending = [(group, 0)]
    while pending:
        members, start = pending.pop()
        if len(members) == 1 or start == members[0].nbytes:
            yield members
            continue
        parts, end = _advance(reader, members, start)
        pending += [(part, end) for part in parts]


def _advance(reader: ByteReader, members: list[TensorRecord], start: int) -> tuple[list[list[TensorRecord]], int]:
    """Read on to the first block in which the members differ; return the parts, and the offset to continue from."""
    total = members[0].nbytes
    length = max(view_reader.SAMPLE, min(view_reader.BLOCK, _BUFFERED // len(members)))
    buffers = [bytearray(0), bytearray(0)]
    for offset, size in view_reader.stored_pieces(reader, [member.range for member in members], start, total, length):
        if len(buffers[0]) != size:
            buffers = [bytearray(size), bytearray(size)]
        # More buffers are allocated only if the members differ.
        seen, scratch = [buffers[0]], buffers[1]
        if len(scratch) <= _SMALL and len(members) <= view_reader.ANNOUNCED:
            view_reader.announce(reader, [(member.range, offset, len(scratch)) for member in members])
        reader.read_into(members[0].range, offset, memoryview(seen[0]))
        parts = [[members[0]]]
        for member in members[1:]:
            reader.read_into(member.range, offset, memoryview(scratch))
            index = next((index for index, block in enumerate(seen) if block == scratch), None)
            if index is not None:
                parts[index].append(member)
                continue
            seen.append(scratch)
            parts.append([member])
            if len(parts) > _OPEN_PARTS:
                break
            scratch = bytearray(len(scratch))
        if len(parts) > _OPEN_PARTS:
            # Too many blocks to keep: split by hash, and prove those parts from this block on.
            return list(_split_by_sample(reader, members, offset, size)), offset
        if len(parts) > 1:
            return parts, offset + size
    return [members], total


# Bound the work of comparing all pairs of tensors of a kind, which a file can make quadratic.

MOST_PAIRS = 8192
"""Pairs with equal ends that are compared in full."""
MOST_CROSS_PAIRS = 4_000_000
"""Pairs of different types whose ends are compared."""
_TIMES, _FREE = 16, 256 << 20
"""Pairs may take this many times the bytes of the tensors, plus these bytes."""


class PairWork:
    """The comparisons of one bucket of classes."""

    def __init__(self, classes: Sequence[_Class]) -> None:
        self._classes = classes
        self._pairs, self._bytes = MOST_PAIRS, _FREE + _TIMES * sum(group[0].nbytes for group in classes)

    def spend(self, left: TensorRecord, right: TensorRecord) -> None:
        """Count one comparison. Raises `RefusedError` if the limit is exceeded."""
        self._pairs -= 1
        self._bytes -= left.nbytes + right.nbytes
        if self._pairs < 0 or self._bytes < 0:
            _refuse(self._classes)


def cross_pairs(classes: Sequence[_Class]) -> Iterator[tuple[_Class, _Class]]:
    """Yield each pair of classes of two types, in the order of `itertools.combinations`. Raises `RefusedError`."""
    total = Counter(group[0].dtype for group in classes)
    if len(classes) ** 2 - sum(number**2 for number in total.values()) > 2 * MOST_CROSS_PAIRS:
        _refuse(classes)
    later: dict[str, list[int]] = defaultdict(list)
    for index in range(len(classes) - 1, -1, -1):
        later[classes[index][0].dtype].append(index)  # the next one is the last of each list
    for first in classes:
        later[first[0].dtype].pop()
        others = (reversed(places) for dtype, places in later.items() if dtype != first[0].dtype)
        for partner in merge(*others):
            yield first, classes[partner]


def _refuse(classes: Sequence[_Class]) -> NoReturn:
    first = classes[0][0]
    raise RefusedError(
        f"{shown(first.range.file)} has {len(classes):,} different tensors with the same ends as "
        f"{shown(first.name)}: too many to compare every pair",
        Hint("read only the headers: ", option(depth="header")),
        "duplicates.pairs",
    )
