"""Write a stored matrix transposed, tile by tile, and check that a file holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import Gathered
from tieconv.execute.contents.copy import Tick, copy_range, read_full, write_full
from tieconv.execute.proof.first_difference import first_difference

SIDE = 2048
"""Rows and columns of a tile: 16 MiB of float32, read and written in runs of 8 KiB."""
_STRIP = 64

Array = npt.NDArray[Any]


@record
class _Tile:
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of the stored matrix."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.bottom - self.top, self.right - self.left


def write_turned(source: int, descriptor: int, offset: int, content: Gathered, tick: Tick) -> None:
    """Write the content at ``offset``. Content that is not transposed is copied."""
    if not _is_turned(content):
        copy_range(source, content.range.start, descriptor, offset, content.range.size, tick)
        return
    width = _width(content)
    columns, rows = content.shape
    for tile in _tiles(rows, columns):
        turned = _turned(source, content, tile, width)
        for number, line in enumerate(turned, tile.left):
            write_full(descriptor, line.data.cast("B"), offset + (number * rows + tile.top) * width)
        tick(turned.nbytes)


def first_not_turned(source: int, descriptor: int, start: int, content: Gathered, tick: Tick) -> int | None:
    """Return the first offset at which the file differs from the content, or ``None`` if it holds all of it.

    The content starts at offset ``start`` of the file.
    """
    if not _is_turned(content):
        span: ByteRange = content.range
        return first_difference(source, descriptor, [(start, start + span.size)], span.start - start, tick)
    width = _width(content)
    columns, rows = content.shape
    for tile in _tiles(rows, columns):
        expected = _turned(source, content, tile, width)
        stored = np.empty_like(expected)
        for number, line in enumerate(stored, tile.left):
            read_full(descriptor, line.data.cast("B"), start + (number * rows + tile.top) * width)
        if not np.array_equal(expected, stored):
            line, column = np.argwhere(expected != stored)[0]
            return start + ((int(line) + tile.left) * rows + tile.top + int(column)) * width
        tick(expected.nbytes)
    return None


def _is_turned(content: Gathered) -> bool:
    return content.stride[0] == 1 and content.shape[1] != 1


def _width(content: Gathered) -> int:
    return content.range.size // (content.shape[0] * content.shape[1])


def _tiles(rows: int, columns: int) -> Iterator[_Tile]:
    for top in range(0, rows, SIDE):
        for left in range(0, columns, SIDE):
            yield _Tile(top, min(top + SIDE, rows), left, min(left + SIDE, columns))


def _turned(source: int, content: Gathered, tile: _Tile, width: int) -> Array:
    """Return the transposed tile.

    Strips as wide as a few cache lines are three times as fast as the whole tile.
    """
    columns = content.shape[0]
    stored: Array = np.empty(tile.shape, np.dtype(f"<u{width}"))
    for row, line in enumerate(stored, tile.top):
        read_full(source, line.data.cast("B"), content.range.start + (row * columns + tile.left) * width)
    turned: Array = np.empty(tile.shape[::-1], stored.dtype)
    for left in range(0, stored.shape[1], _STRIP):
        turned[left : left + _STRIP] = stored[:, left : left + _STRIP].T
    return turned
