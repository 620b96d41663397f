"""Dequantise the blocks of MatMulNBits and GatherBlockQuantized. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.schemes.interface import CODES, SCALES, ZERO_POINTS
from tieconv.inspection.quantised.values.number_types import Array, to_float64
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, uniform


def block_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes: (code − zero point) · scale.

    The default zero point of bytes is the middle of the codes, and that of U4 and I4 is 0.
    """
    columns, bits = (parts.matrix.shape or (0, 0))[1], parts.matrix.bits or 4
    block = (parts.matrix.block or (1, columns))[1]
    blocks = -(-columns // block)
    groups = np.arange(columns) // block
    codes = _codes(_unsigned(parts, CODES, parts.raw(CODES, start, stop)), bits)[:, :columns]
    scales = _scales(parts, start, stop, blocks)[:, groups]
    zero_points: Array | int = 0 if parts.dtype(CODES) == "U4" else 1 << (bits - 1)
    if ZERO_POINTS in parts:
        zero_points = _zero_points(parts, start, stop, blocks, bits)[:, groups]
    return uniform(codes, scales, zero_points, ends=(0, (1 << bits) - 1), roundoff=parts.roundoff(SCALES))


def _unsigned(parts: PartReader, role: str, raw: Array) -> Array:
    """Return the bytes, with 8 added to each number of I4, which is signed."""
    return raw ^ 0x88 if parts.dtype(role) == "I4" else raw


def _codes(raw: Array, bits: int) -> Array:
    """Return the codes of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits)
    codes: Array = (raw[:, :, None].astype(np.int64) >> shifts & ((1 << bits) - 1)).reshape(len(raw), -1)
    return codes


def _scales(parts: PartReader, start: int, stop: int, blocks: int) -> Array:
    """Return one scale for each block of the rows; the initializer may be flat."""
    raw = _of_rows(parts, SCALES, start, stop)
    numbers = to_float64(bytearray(raw.tobytes()), parts.dtype(SCALES)).reshape(stop - start, -1)
    if numbers.shape[1] != blocks:
        raise ValueError("its scales do not fit the codes")
    return numbers


def _zero_points(parts: PartReader, start: int, stop: int, blocks: int, bits: int) -> Array:
    """Return one zero point for each block: packed as the codes are, or numbers of the scales' type."""
    raw = _of_rows(parts, ZERO_POINTS, start, stop)
    if parts.dtype(ZERO_POINTS) in ("U8", "U4", "I4"):
        numbers = _codes(_unsigned(parts, ZERO_POINTS, raw), bits)[:, :blocks]
    else:
        numbers = to_float64(bytearray(raw.tobytes()), parts.dtype(ZERO_POINTS)).reshape(stop - start, -1)
    if numbers.shape[1] != blocks:
        raise ValueError("its zero points do not fit the codes")
    return numbers


def _of_rows(parts: PartReader, role: str, start: int, stop: int) -> Array:
    """Return the bytes of rows of a part that may be flat."""
    rows = (parts.matrix.shape or (1, 1))[0]
    width, rest = divmod(parts.nbytes(role), rows)
    if rest:
        raise ValueError("its parts have no whole number of bytes for each row")
    return parts.flat(role, start * width, stop * width).reshape(stop - start, width)
