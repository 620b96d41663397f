"""Dequantise the formats of compressed-tensors. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    GLOBAL_SCALE,
    GROUP_INDEX,
    SCALES,
    ZERO_POINTS,
    words,
)
from tieconv.inspection.quantised.values.code_bits import nibbles, unpack_words
from tieconv.inspection.quantised.values.number_types import E2M1, POWERS, TABLES, Array, half_gaps
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, from_table, uniform

_E2M1_GAPS = half_gaps(E2M1)
POWER_OF_TWO_EDGE = 2**0.5 - 1
"""A scale that is rounded to a power of two may be this share too small. The largest code is then clipped."""
_MX_GAPS = half_gaps(E2M1, edge=6 * POWER_OF_TWO_EDGE)


def packed_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of pack-quantized codes: (code − zero point) · scale."""
    columns, bits = (parts.matrix.shape or (0, 0))[1], parts.matrix.bits or 4
    raw = parts.raw(CODES, start, stop)
    gaps = raw.shape[1] // 4 != words(columns, bits)
    codes = unpack_words(raw, bits, columns, gaps=gaps)
    half = 1 << (bits - 1)
    groups = _groups(parts)
    zero_points = _zero_points(parts, start, stop, groups, half)
    scales = parts.grid(SCALES, start, stop, groups)
    return uniform(codes, scales, zero_points, ends=(0, 2 * half - 1), roundoff=parts.roundoff(SCALES))


def _groups(parts: PartReader) -> Array | None:
    """Return the group of each column, if the columns are not in order. Raises `ValueError` for an impossible one."""
    if GROUP_INDEX not in parts:
        return None
    columns = (parts.matrix.shape or (0, 0))[1]
    groups = parts.whole(GROUP_INDEX).astype(np.int64) if parts.shape(GROUP_INDEX) == (columns,) else np.array([-1])
    if groups.min() < 0 or groups.max() >= parts.shape(SCALES)[-1]:
        raise ValueError("its weight_g_idx does not fit the scales")
    return groups


def _zero_points(parts: PartReader, start: int, stop: int, groups: Array | None, half: int) -> Array | int:
    """Return the zero points as unsigned codes: those in 32-bit words are packed along the tokens."""
    if ZERO_POINTS not in parts:
        return half
    if parts.dtype(ZERO_POINTS) != "I32":
        return parts.grid(ZERO_POINTS, start, stop, groups) + half
    columns, bits = (parts.matrix.shape or (0, 0))[1], parts.matrix.bits or 4
    height = (parts.matrix.block or (1, columns))[0]
    first, end = start // height, -(-stop // height)
    codes = parts.codes_along_tokens(ZERO_POINTS, bits, first, end)
    return _spread(codes[np.arange(start, stop) // height - first], parts, groups)


def _spread(codes: Array, parts: PartReader, groups: Array | None) -> Array:
    """Repeat the number of each group for its columns."""
    columns = (parts.matrix.shape or (0, 0))[1]
    width = (parts.matrix.block or (1, columns))[1]
    if codes.shape[1] == 1:
        return codes
    return codes[:, np.arange(columns) // width if groups is None else groups]


def byte_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes that are whole bytes: (code − zero point) · scale."""
    scales, roundoff = parts.grid(SCALES, start, stop), parts.roundoff(SCALES)
    dtype = parts.dtype(CODES)
    if dtype in TABLES:
        codes = parts.raw(CODES, start, stop)
        return from_table(codes, TABLES[dtype], half_gaps(TABLES[dtype]), scales, roundoff)
    signed = parts.rows(CODES, start, stop)
    zero_points: Array | float = parts.grid(ZERO_POINTS, start, stop) if ZERO_POINTS in parts else 0.0
    half = 1 << ((parts.matrix.bits or 8) - 1)
    return uniform(signed, scales, zero_points, ends=(-half, half - 1), roundoff=roundoff)


def nvfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times their scale; the divisor is the global scale."""
    codes = nibbles(parts.raw(CODES, start, stop))
    return from_table(codes, E2M1, _E2M1_GAPS, parts.grid(SCALES, start, stop), parts.roundoff(SCALES))


def nvfp4_divisor(parts: PartReader) -> float:
    """Return the global scale. Raises `ValueError` if it is not one number."""
    number = float(parts.whole(GLOBAL_SCALE)[0]) if parts.shape(GLOBAL_SCALE) in ((), (1,)) else 0.0
    if not number:
        raise ValueError("its global scale is not one number other than 0")
    return number


def mxfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times a power of two."""
    codes = nibbles(parts.raw(CODES, start, stop))
    return from_table(codes, E2M1, _MX_GAPS, power_grid(parts, start, stop), 0.0)


def power_grid(parts: PartReader, start: int, stop: int) -> Array:
    """Return the E8M0 scales of rows, repeated for each element."""
    stored = parts.grid(SCALES, start, stop)
    return stored if parts.dtype(SCALES) == "F8_E8M0" else POWERS[stored.astype(np.int64)]
