"""Read the tensors of a distributed checkpoint as if one file held them, each dense and in row-major order."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Protocol

from tieconv.checkpoint.model_files import ByteReader, Files, FileState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, Chunk, ChunkTable, TensorRecord
from tieconv.errors import UnreadableError
from tieconv.sources.strided import StridedRange, dense, gather
from tieconv.text import shown


class _Sources(Files, ByteReader, Protocol):
    @property
    def bytes_read(self) -> int: ...


@record
class _Placed:
    """A chunk, its runs in the tensor, and a number that identifies it."""

    chunk: Chunk
    runs: ChunkRuns
    key: tuple[str, int]


class ChunkReader:
    """A `ByteReader` of the dense bytes of chunked tensors. Raises `UnreadableError` for a chunk that is damaged."""

    def __init__(self, files: _Sources, records: Iterable[TensorRecord], table: ChunkTable) -> None:
        self._files = files
        self._table = table
        self._records = sorted((record for record in records if record.range.size), key=lambda each: each.range.start)
        self._starts = [record.range.start for record in self._records]
        self._placed: dict[str, list[_Placed]] = {}
        self._items: dict[tuple[str, int], ChunkItem] = {}
        # What a comparison proved, so that no tensor is read twice: see `compare_bytes.equal` and `NanWatch`.
        self.equal_ranges: set[frozenset[ByteRange]] = set()
        self.nans: dict[ByteRange, bool] = {}

    @property
    def bytes_read(self) -> int:
        return self._files.bytes_read

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return bytes of a file, as the files do."""
        return self._files.pread(name, size, offset)

    def state(self, name: str) -> FileState:
        """Return the state of a file, as the files do."""
        return self._files.state(name)

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``, a range of the tensors one after the other."""
        target, position, done = buffer.cast("B"), span.start + offset, 0
        while done < len(target):
            record = self._records[bisect_right(self._starts, position + done) - 1]
            first = position + done - record.range.start
            size = min(record.range.size - first, len(target) - done)
            self._read(record, first, target[done : done + size])
            done += size

    def _read(self, record: TensorRecord, first: int, target: memoryview) -> None:
        end = first + len(target)
        placed = [each for each in self._chunks(record) if each.runs.start < end and each.runs.end > first]
        for each in placed:
            self._copy(record, each, first, target)
        if record.name in self._table.overlapping:
            for each in placed:
                again = bytearray(target)
                self._copy(record, each, first, memoryview(again))
                if again != target:
                    problem = f"{shown(each.chunk.range.file)}: two chunks of {shown(record.name)} overlap and differ"
                    raise UnreadableError(problem, "save the checkpoint again", "dcp.overlap")

    def _copy(self, record: TensorRecord, placed: _Placed, first: int, target: memoryview) -> None:
        item = self._item(record, placed)

        def read(position: int, buffer: memoryview) -> None:
            read_item(self._files.read_into, item, position, buffer)

        # Copy what the chunk holds of the dense bytes from ``first`` on into ``target``.
        end = first + len(target)
        for start, number, count, step in _series(placed.runs, first, end):
            _copy_series(placed.runs.length, read, (start, number, count, step), first, target)

    def _chunks(self, record: TensorRecord) -> list[_Placed]:
        placed = self._placed.get(record.name)
        if placed is None:
            width = _width(record)
            stored = enumerate(self._table.chunks[record.name])
            placed = [
                _Placed(chunk, chunk_runs(chunk, record.shape, width), (record.name, number))
                for number, chunk in stored
                if all(chunk.shape)
            ]
            self._placed[record.name] = placed
        return placed

    def _item(self, record: TensorRecord, placed: _Placed) -> ChunkItem:
        item = self._items.get(placed.key)
        if item is None:
            if len(self._items) >= 20_000:
                self._items.clear()
            item = find_item(self._files, record.name, record.dtype, _width(record), placed.chunk)
            self._items[placed.key] = item
        return item

    def check_sums(self, record: TensorRecord) -> None:
        """Raise an error unless every chunk of the tensor has the CRC-32 of its archive."""
        for placed in self._chunks(record):
            item = self._item(record, placed)
            if item.crc is not None and item.crc != self._crc(item.checked):
                problem = f"{shown(item.checked.file)}: the stored chunk of {shown(record.name)} has a wrong checksum"
                raise UnreadableError(problem, "the file is damaged; fetch it again", "dcp.crc")

    def _crc(self, span: ByteRange) -> int:
        crc = 0
        block = memoryview(bytearray(min(span.size, _BLOCK)))
        for offset in range(0, span.size, _BLOCK):
            part = block[: min(_BLOCK, span.size - offset)]
            self._files.read_into(span, offset, part)
            crc = zlib.crc32(part, crc)
        return crc


_BLOCK = 1024 * 1024


def _width(record: TensorRecord) -> int:
    return record.range.size // max(record.elements, 1)


# Find the bytes of one stored chunk: all of a range, or the tensor in an archive of `torch.save`.
@record
class ChunkItem:
    """The stored bytes of a chunk. ``width`` is the bytes of an element, ``crc`` the checksum of ``checked``."""

    range: ByteRange
    width: int
    checked: ByteRange
    crc: int | None


def find_item(files: Files, name: str, dtype: str, width: int, chunk: Chunk) -> ChunkItem:
    """Return where the chunk of tensor ``name`` is stored. Raises `UnreadableError` if it holds something else."""
    if not chunk.archive:
        return ChunkItem(chunk.range, width, chunk.range, None)
    from tieconv.formats.torch.pickle_stack import PickleProblem
    from tieconv.formats.torch.reader import read_one_tensor

    span = chunk.range
    try:
        stored, storage = read_one_tensor(_within(files, span), span.size, name)
    except PickleProblem as problem:
        raise _unlike(span.file, name, f"{problem}") from None
    if (stored.dtype, stored.shape) != (dtype, chunk.shape):
        has = f"{shown(stored.dtype)} {list(stored.shape)}"
        raise _unlike(span.file, name, f"is {has}, but .metadata says {shown(dtype)} {list(chunk.shape)}")
    # The offsets of the item count from the first byte of the file.
    tensor = dense(stored)
    inside, start = tensor.range, span.start
    if isinstance(inside, StridedRange):
        dense_range: ByteRange = StridedRange(
            span.file, 0, prod(tensor.shape) * width, start + inside.base, width, tensor.shape, inside.stride
        )
    else:
        dense_range = ByteRange(span.file, start + inside.start, start + inside.end)
    checked = ByteRange(span.file, start + storage.range.start, start + storage.range.end)
    return ChunkItem(dense_range, width, checked, storage.crc)


def read_item(
    read: Callable[[ByteRange, int, memoryview], None], item: ChunkItem, offset: int, target: memoryview
) -> None:
    """Fill ``target`` with the dense bytes of a chunk from ``offset`` on. Gathers a strided one."""
    span, size = item.range, len(target)
    if not isinstance(span, StridedRange):
        read(span, offset, target)
        return

    def read_at(position: int, buffer: memoryview) -> None:
        read(ByteRange(span.file, position, position + len(buffer)), 0, buffer)

    first = offset - offset % item.width
    end = min(-(-(offset + size) // item.width) * item.width, span.end)
    target[:] = gather(read_at, span, first, end)[offset - first :][:size]


def _within(files: Files, span: ByteRange) -> Callable[[int, int], bytes]:
    def pread(size: int, offset: int) -> bytes:
        return files.pread(span.file, max(min(size, span.size - offset), 0), span.start + offset)

    return pread


def _unlike(file: str, name: str, why: str) -> UnreadableError:
    problem = f"{shown(file)}: the stored chunk of {shown(name)} {why}"
    return UnreadableError(problem, "the copy may be incomplete; fetch the file again", "dcp.item")


# Copy the chunks of a tensor into dense bytes. Each chunk is a series of runs, equally long and in order.

ReadStored = Callable[[int, memoryview], None]
"""``read(position, buffer)``: fill ``buffer`` from byte ``position`` of a chunk."""


@record
class ChunkRuns:
    """The position of a chunk in the dense bytes of its tensor.

    A run is ``length`` bytes that follow one another in the chunk and in the tensor. ``sides`` are the dimensions of
    the runs, ``steps`` the dense bytes between two of each dimension. ``start`` and ``end`` bound all runs.
    """

    start: int
    end: int
    length: int
    sides: tuple[int, ...]
    steps: tuple[int, ...]


def chunk_runs(chunk: Chunk, shape: tuple[int, ...], width: int) -> ChunkRuns:
    """Return where a chunk of a tensor of ``shape`` lies; ``width`` is the bytes of an element. It is not empty."""
    steps = [prod(shape[axis + 1 :]) * width for axis in range(len(shape))]
    start = sum(offset * step for offset, step in zip(chunk.offsets, steps, strict=True))
    inner = len(shape)
    while inner and chunk.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    # Dimension inner - 1 is cut, and every later one is whole: its elements are one run.
    cut = max(inner - 1, 0)
    length = prod(chunk.shape[cut:]) * width
    sides = [(side, step) for side, step in zip(chunk.shape[:cut], steps, strict=False) if side > 1]
    end = start + length + sum((side - 1) * step for side, step in sides)
    return ChunkRuns(start, end, length, tuple(side for side, _ in sides), tuple(step for _, step in sides))


_Series = tuple[int, int, int, int]
"""Runs of one dimension: the dense start of the first, its number in the chunk, their count and their distance."""


def _series(runs: ChunkRuns, first: int, end: int) -> Iterator[_Series]:
    stack = [(runs.start, 0, 0)]
    while stack:
        start, number, axis = stack.pop()
        if axis == len(runs.sides):
            if start < end and start + runs.length > first:
                yield start, number, 1, 0
            continue
        side, step = runs.sides[axis], runs.steps[axis]
        reach = _reach(runs, axis + 1)
        low = max(-(-(first - start - reach + 1) // step), 0)
        high = min(-(-(end - start) // step), side)
        if axis == len(runs.sides) - 1:
            if low < high:
                yield start + low * step, number * side + low, high - low, step
            continue
        stack += [(start + index * step, number * side + index, axis + 1) for index in range(high - 1, low - 1, -1)]


def _reach(runs: ChunkRuns, axis: int) -> int:
    """Return the dense bytes from the first to the last of the runs in the dimensions from ``axis`` on."""
    pairs = zip(runs.sides[axis:], runs.steps[axis:], strict=True)
    return runs.length + sum((side - 1) * step for side, step in pairs)


PIECE = 1024 * 1024
"""Most stored bytes that are read before they are put in place."""
LONG = 16 * 1024
"""Bytes of a run from which it is read by itself, straight into place."""


def _copy_series(length: int, read: ReadStored, series: _Series, first: int, target: memoryview) -> None:
    start, number, count, step = series
    if count == 1 or length >= LONG:
        for _ in range(count):
            low, high = max(first - start, 0), min(first + len(target) - start, length)
            read(number * length + low, target[start + low - first : start + high - first])
            start, number = start + step, number + 1
        return
    per_piece = PIECE // length
    for done in range(0, count, per_piece):
        stored = memoryview(bytearray(min(per_piece, count - done) * length))
        read((number + done) * length, stored)
        _scatter(stored, length, start + done * step - first, step, target)


def _scatter(stored: memoryview, length: int, position: int, step: int, target: memoryview) -> None:
    """Put runs of ``length`` bytes at ``position``, ``position + step`` and so on; cut the ends that are outside."""
    size = len(target)
    for source in range(0, len(stored), length):
        if position >= 0 and position + length <= size:
            target[position : position + length] = stored[source : source + length]
        else:
            low, high = max(-position, 0), min(size - position, length)
            target[position + low : position + high] = stored[source + low : source + high]
        position += step
