"""Prove that the chunks of a tensor cover every element of it, and find those that overlap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tieconv.checkpoint.files.chunks import Chunk
from tieconv.errors import UnreadableError
from tieconv.text import shown

CELLS_EACH = 64
"""Most cells of the common grid for each chunk. A mesh has one cell a chunk."""
CELLS = 1024
"""Cells that any tensor may have."""


def overlaps(name: str, shape: Sequence[int], chunks: Sequence[Chunk], source: str) -> bool:
    """Return whether two chunks share an element. Raises `UnreadableError` unless the chunks cover the tensor.

    The borders of all chunks cut the tensor into cells. Each chunk then is a box of whole cells.
    """
    _check_inside(name, shape, chunks, source)
    if not prod(shape):
        return False
    chunks = [chunk for chunk in chunks if prod(chunk.shape)]
    borders = [sorted({0, side, *_borders(chunks, axis)}) for axis, side in enumerate(shape)]
    sides = [len(border) - 1 for border in borders]
    if prod(sides) > CELLS + CELLS_EACH * len(chunks):
        raise _malformed(source, f"cuts {shown(name)} into chunks that form no mesh", "dcp.mesh")
    covered = bytearray(prod(sides))
    shared = False
    for chunk in chunks:
        for cell in _cells(chunk, borders, sides):
            shared |= bool(covered[cell])
            covered[cell] = 1
    if not all(covered):
        missing = _unravel(covered.index(0), sides)
        corner = tuple(border[index] for border, index in zip(borders, missing, strict=True))
        raise _malformed(source, f"has no chunk of {shown(name)} for the element {_index(corner)}", "dcp.hole")
    return shared


def _check_inside(name: str, shape: Sequence[int], chunks: Sequence[Chunk], source: str) -> None:
    for chunk in chunks:
        ends = [start + side for start, side in zip(chunk.offsets, chunk.shape, strict=True)]
        if any(end > side for end, side in zip(ends, shape, strict=True)):
            where = f"a chunk of {shown(name)} that reaches to {_index(ends)}"
            raise _malformed(source, f"has {where}, outside the shape {_index(shape)}", "dcp.outside")


def _borders(chunks: Sequence[Chunk], axis: int) -> Iterator[int]:
    for chunk in chunks:
        yield chunk.offsets[axis]
        yield chunk.offsets[axis] + chunk.shape[axis]


def _cells(chunk: Chunk, borders: Sequence[Sequence[int]], sides: Sequence[int]) -> Iterator[int]:
    """Yield the number of each cell of the chunk, in row-major order."""
    spans = [
        range(bisect_left(border, start), bisect_left(border, start + side))
        for border, start, side in zip(borders, chunk.offsets, chunk.shape, strict=True)
    ]
    for index in product(*spans):
        number = 0
        for position, side in zip(index, sides, strict=True):
            number = number * side + position
        yield number


def _unravel(number: int, sides: Sequence[int]) -> tuple[int, ...]:
    index = []
    for side in reversed(sides):
        number, position = divmod(number, side)
        index.append(position)
    return tuple(reversed(index))


def _index(values: Sequence[int]) -> str:
    return f"[{', '.join(f'{value:,}' for value in values)}]"


def _malformed(source: str, why: str, code: str) -> UnreadableError:
    return UnreadableError(f"{shown(source)} {why}", "save the checkpoint again", code)
