"""Prove that one stored matrix is the transpose of another. Imports numpy: import it lazily."""

from __future__ import annotations

from itertools import product
from math import isqrt

import numpy as np

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.inspection.numeric.bits import Array

TILE_BYTES = 4 * 1024 * 1024
"""Bytes of each matrix in memory at a time."""

# A strip as wide as a cache line compares four times as fast as a square tile of that size.
_CACHE_LINE = 64
_STRIP_BYTES = 64 * 1024


def transpose_equal(reader: ByteReader, a: TensorRecord, b: TensorRecord, width: int) -> bool:
    """Return whether ``b[j, i]`` has the bits of ``a[i, j]`` for every element of ``width`` bytes."""
    rows, columns = a.shape
    height, breadth = _tile(rows, columns, TILE_BYTES // width)
    for row, column in product(range(0, rows, height), range(0, columns, breadth)):
        tall, wide = min(height, rows - row), min(breadth, columns - column)
        left = _read_tile(reader, a, (row, column), (tall, wide), width)
        right = _read_tile(reader, b, (column, row), (wide, tall), width)
        if not _tiles_equal(left, right):
            return False
    return True


def _tile(rows: int, columns: int, elements: int) -> tuple[int, int]:
    """Return (rows, columns) of the tiles of ``a`` that need the fewest reads per element.

    A tile that spans a whole matrix row is one read. Any other tile is one read for each of its rows.
    """
    side = isqrt(elements)
    breadths = {min(columns, elements), min(columns, side), min(columns, max(1, elements // rows))}
    tiles = [(min(rows, elements // breadth), breadth) for breadth in breadths]

    def reads_per_element(tile: tuple[int, int]) -> float:
        tall, wide = tile
        reads = (1 if wide == columns else tall) + (1 if tall == rows else wide)
        return reads / (tall * wide)

    return min(tiles, key=reads_per_element)


def _read_tile(
    reader: ByteReader, record: TensorRecord, corner: tuple[int, int], shape: tuple[int, int], width: int
) -> Array:
    stride = record.shape[1]
    tile: Array = np.empty(shape, np.dtype(f"<u{width}"))
    view = tile.reshape(-1).view("u1").data
    if shape[1] == stride:
        reader.read_into(record.range, corner[0] * stride * width, view)
        return tile
    length = shape[1] * width
    for row in range(shape[0]):
        offset = ((corner[0] + row) * stride + corner[1]) * width
        reader.read_into(record.range, offset, view[row * length : (row + 1) * length])
    return tile


def _tiles_equal(left: Array, right: Array) -> bool:
    elements = _STRIP_BYTES // left.itemsize
    # Taller if there are few columns, wider if there are few rows: calls for short strips would cost the most.
    tall = min(left.shape[0], elements // min(left.shape[1], _CACHE_LINE // left.itemsize))
    wide = elements // tall
    return all(
        np.array_equal(left[i : i + tall, j : j + wide], right[j : j + wide, i : i + tall].T)
        for i, j in product(range(0, left.shape[0], tall), range(0, left.shape[1], wide))
    )
