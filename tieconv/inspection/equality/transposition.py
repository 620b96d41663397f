"""Decide whether one matrix is the transpose of another: probe first, then prove over every element."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.inspection.blocks import read
from tieconv.inspection.equality.compare_bytes import equal

_PROBES = 64


def transposable(a: TensorRecord, b: TensorRecord) -> bool:
    """Return whether ``b`` can be ``a`` transposed by shapes and types: matrices of whole-byte elements."""
    return (
        len(a.shape) == 2
        and a.shape == b.shape[::-1]
        and a.elements > 0
        and a.dtype == b.dtype
        and BITS.get(a.dtype, 1) % 8 == 0
        and a.nbytes == b.nbytes == a.elements * BITS[a.dtype] // 8
    )


def transposed(reader: ByteReader, a: TensorRecord, b: TensorRecord) -> bool:
    """Return whether ``b`` is ``a`` transposed, by the bits of every element. Raises what the reader raises."""
    if not transposable(a, b):
        return False
    if 1 in a.shape:
        return equal(reader, a.range, b.range)
    return _probes_agree(reader, a, b) and _proved(reader, a, b)


def _probes_agree(reader: ByteReader, a: TensorRecord, b: TensorRecord) -> bool:
    width = BITS[a.dtype] // 8
    return all(
        read(reader, a.range, (row * a.shape[1] + column) * width, width)
        == read(reader, b.range, (column * b.shape[1] + row) * width, width)
        for row, column in _places(*a.shape)
    )


def _places(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the corners, then positions from a fixed linear congruential sequence."""
    yield from ((0, columns - 1), (rows - 1, 0))
    state = rows * columns
    for _ in range(_PROBES):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 32) % rows, (state >> 8) % columns


def _proved(reader: ByteReader, a: TensorRecord, b: TensorRecord) -> bool:
    from tieconv.inspection.numeric.transpose import transpose_equal

    return transpose_equal(reader, a, b, BITS[a.dtype] // 8)
