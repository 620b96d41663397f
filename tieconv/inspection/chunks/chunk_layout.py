"""Copy the chunks of a tensor into dense bytes. Each chunk is a series of runs, equally long and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from tieconv.checkpoint.files.chunks import Chunk
from tieconv.checkpoint.value_type import record

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


def copy_chunk(runs: ChunkRuns, read: ReadStored, first: int, target: memoryview) -> None:
    """Copy what the chunk holds of the dense bytes from ``first`` on into ``target``."""
    end = first + len(target)
    for start, number, count, step in _series(runs, first, end):
        _copy_series(runs.length, read, (start, number, count, step), first, target)


_Series = tuple[int, int, int, int]
"""Runs of one dimension: the dense start of the first, its number in the chunk, their count and their distance."""


def _series(runs: ChunkRuns, first: int, end: int) -> Iterator[_Series]:
    """Yield the runs that hold some of the dense bytes ``first`` to ``end``."""
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
