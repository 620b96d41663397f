"""Find which tensors share bytes of a storage, and which bytes no tensor uses."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import gcd

from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.relation import Aliased
from tieconv.checkpoint.relation.proved import Transposed
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import Overlap, Slack, StorageUse, TensorRecord
from tieconv.inspection.view_reader import stream
from tieconv.sources.digest import Sums, damaged
from tieconv.sources.strided import StridedRange, row_major


def view_storages(checkpoint: Checkpoint) -> StorageUse | None:
    """Return the use of the storages; ``None`` for a format in which tensors share no bytes."""
    files = [file for file in checkpoint.files if file.storages]
    if not files:
        return None
    overlaps: list[Overlap] = []
    slack: list[Slack] = []
    for file in files:
        # The storages whose bytes all belong to one tensor: the usual case, half a million times.
        users = Counter([record.storage for record in file.tensors])
        ranges = {storage.key: storage.range for storage in file.storages}
        alone = {
            record.storage
            for record in file.tensors
            if record.storage is not None
            and record.stride is None
            and users[record.storage] == 1
            and record.range == ranges[record.storage]
        }
        held: dict[str, list[TensorRecord]] = defaultdict(list)
        for tensor in file.tensors:
            if tensor.storage is not None and tensor.storage not in alone:
                held[tensor.storage].append(tensor)
        for storage in file.storages:
            if storage.key in alone:
                continue
            tensors = held[storage.key]
            overlaps += _overlaps(tensors)
            # The tensors use at most the bytes of each view once, within the spans of all.
            own = {(record.range, record.shape, record.stride): _own(record) for record in tensors}
            spans = sum(end - start for start, end, _ in _clusters(tensors))
            unused = storage.range.size - min(sum(own.values()), spans)
            if unused > 0:
                slack.append(Slack(file.name, _names(tensors), storage.range.size, unused))
    stored = sum(storage.range.size for file in files for storage in file.storages)
    return StorageUse(sum(len(file.storages) for file in files), stored, tuple(overlaps), tuple(slack))


def check_sums(checkpoint: Checkpoint, reader: ByteReader) -> None:
    """Raise `UnreadableError` if the bytes of a storage do not have the checksum in the file."""
    sums: Sums | None = getattr(reader, "sums", None)  # a local reader checks by itself whatever is read to its end
    for file in checkpoint.files:
        for storage in file.storages:
            if sums is not None and sums.is_right(storage):
                continue
            crc = 0
            for block in stream(reader, storage.range):
                crc = zlib.crc32(block, crc) if sums is None else 0
            if sums is None and storage.crc not in (None, crc):
                raise damaged(file, storage)


def _names(tensors: Iterable[TensorRecord]) -> tuple[str, ...]:
    return tuple(record.name for record in tensors)


def _own(record: TensorRecord) -> int:
    """Return the bytes of a view's elements; a repeated element counts once."""
    if record.stride is None:
        return record.range.size
    repeated = 1
    for side, step in zip(record.shape, record.stride, strict=True):
        repeated *= side if step == 0 else 1
    return min(record.nbytes // repeated, record.range.size)


def _clusters(tensors: Iterable[TensorRecord]) -> Iterator[tuple[int, int, list[TensorRecord]]]:
    """Yield tensors whose spans touch the same bytes, directly or through others, with the bytes that they cover.

    A cluster ends at the furthest end so far: a tensor within a longer one does not end it.
    """
    cluster: list[TensorRecord] = []
    start = end = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.range.start, -tensor.range.end)):
        if not tensor.range.size:
            continue
        if cluster and tensor.range.start >= end:
            yield start, end, cluster
            cluster = []
        if not cluster:
            start = tensor.range.start
        end = max(end, tensor.range.end) if cluster else tensor.range.end
        cluster.append(tensor)
    if cluster:
        yield start, end, cluster


def _overlaps(tensors: list[TensorRecord]) -> Iterator[Overlap]:
    """Yield one entry for each cluster of two or more tensors that share elements."""
    for _, _, cluster in _clusters(tensors):
        if len(cluster) < 2:
            continue
        kinds = list(_kinds(cluster))
        if kinds:
            # A cluster gets the last kind that its pairs have; the simplest comes first.
            yield Overlap(max(kinds, key=("aliased", "transposed", "view", "slice", "overlap").index), _names(cluster))


def _kinds(cluster: list[TensorRecord]) -> Iterator[str]:
    """Yield how neighbours of a cluster share bytes. Clusters are compared pair by pair up to a bound."""
    pairs = 0
    for index, left in enumerate(cluster):
        for right in cluster[index + 1 :]:
            if right.range.start >= left.range.end:
                break
            pairs += 1
            if pairs > 200_000:
                yield "overlap"
                return
            kind = _kind(left, right)
            if kind:
                yield kind


def _kind(left: TensorRecord, right: TensorRecord) -> str:
    """Return how two tensors with common span bytes share them; empty if their elements interleave."""
    relation = sharing(left, right)
    if relation is not None:
        return "aliased" if relation.state is State.ALIASED else "transposed"
    if _apart(left, right):
        return ""
    if left.range == right.range and left.nbytes == right.nbytes == left.range.size:
        return "view"
    inner, outer = sorted((left.range, right.range), key=lambda span: span.size)
    return "slice" if outer.start <= inner.start and inner.end <= outer.end else "overlap"


def _apart(left: TensorRecord, right: TensorRecord) -> bool:
    """Return whether two views provably share no byte, as columns of one matrix share none.

    Their elements are in windows of one period. If the windows' runs do not overlap, neither do the views.
    """
    period = 0
    reaches = []
    for tensor in (left, right):
        sides = [*zip(tensor.shape, tensor.stride or row_major(tensor.shape), strict=True)]
        width = tensor.range.size // (1 + sum((side - 1) * step for side, step in sides))
        moving = sorted((step * width, side) for side, step in sides if side > 1 and step)
        if not moving:
            return False
        period = gcd(period, moving[-1][0])
        reaches.append((moving[:-1], width))
    runs = []
    for tensor, (inner, width) in zip((left, right), reaches, strict=True):
        length = width + sum(step * (side - 1) for step, side in inner)
        first = tensor.range.start % period
        if first + length > period:
            return False
        runs.append((first, first + length))
    return runs[0][1] <= runs[1][0] or runs[1][1] <= runs[0][0]


# Find how two tensors of one storage relate by their positions alone, without reading bytes.
@record
class _View:
    """The positions of a tensor's elements, without sides of length 1, whose strides have no effect."""

    file: str
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def turned(self) -> _View:
        return _View(self.file, self.start, self.shape[::-1], self.stride[::-1])


def sharing(canonical: TensorRecord, second: TensorRecord) -> Aliased | Transposed | None:
    """Return `aliased` or `transposed` if both names are the same elements of the same bytes, else ``None``.

    Two names without an element share nothing.
    """
    if canonical.dtype != second.dtype or canonical.storage is None or not (canonical.elements and second.elements):
        return None
    left, right = _view(canonical), _view(second)
    if canonical.shape == second.shape and left == right:
        return Aliased()
    if len(canonical.shape) == 2 and canonical.shape == second.shape[::-1] and left == right.turned:
        return Transposed(view=True)
    return None


def shared_names(tensors: Mapping[str, TensorRecord]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are one tensor of the file: the same elements of one storage."""
    storages: dict[object, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.storage is not None:
            storages[tensor.storage, tensor.range.file].append(name)
    groups: dict[object, list[str]] = defaultdict(list)
    for names in storages.values():
        if len(names) > 1:  # of half a million tensors, few share a storage
            for name in names:
                if (tensor := tensors[name]).elements:
                    groups[tensor.dtype, tensor.range, tensor.shape, tensor.stride].append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _view(record: TensorRecord) -> _View:
    span = record.range
    start = span.base if isinstance(span, StridedRange) else span.start
    sides = list(zip(record.shape, record.stride or row_major(record.shape), strict=True))
    axes = [(side, step) for side, step in sides if side != 1]
    return _View(span.file, start, tuple(side for side, _ in axes), tuple(step for _, step in axes))
