"""Dequantise the modules of a torch model. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.module_schemes import V1, quant_state
from tieconv.inspection.quantised.part_reader import (
    E2M1,
    POWERS,
    TABLES,
    Array,
    Decoded,
    PartReader,
    from_table,
    half_gaps,
    nibbles,
    uniform,
    unpack_words,
)
from tieconv.inspection.quantised.scheme_interface import (
    CODE_MAP,
    CODES,
    GLOBAL_SCALE,
    GROUP_INDEX,
    NESTED_MAP,
    NESTED_SCALES,
    SCALES,
    STATE,
    ZERO_POINTS,
    words,
)

# Dequantise GPTQ and AWQ.


TURNED = frozenset({CODES, SCALES, ZERO_POINTS})
"""Parts whose columns are tokens, or words of tokens."""
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The column that each 4 bits of a word hold, lowest first."""


class AmbiguousZeroError(ValueError):
    """A zero point of GPTQ v1 that loaders read as 0 or as one more than the largest code."""


def gptq_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of GPTQ codes: (code − zero point) · scale; v1 stores the zero point minus one."""
    columns, bits = (parts.matrix.shape or (0, 0))[1], parts.matrix.bits or 4
    codes = unpack_words(parts.raw(CODES, start, stop), bits, columns)
    groups = gptq_groups(parts, columns)
    scales = parts.rows(SCALES, start, stop)[:, groups]
    zero_points = _zero_points(parts, bits, start, stop)[:, groups]
    return uniform(codes, scales, zero_points, ends=(0, (1 << bits) - 1), roundoff=parts.roundoff(SCALES))


def gptq_groups(parts: PartReader, columns: int) -> Array:
    """Return the group of each column. Raises `ValueError` for a group that has no scale."""
    if GROUP_INDEX not in parts:
        return np.arange(columns) // (parts.matrix.block or (1, columns))[1]
    groups = parts.whole(GROUP_INDEX).astype(np.int64)
    if groups.min() < 0 or groups.max() >= parts.shape(SCALES)[1]:
        raise ValueError("its g_idx has a group without scales")
    return groups


def _zero_points(parts: PartReader, bits: int, start: int, stop: int) -> Array:
    """Return the zero points of tokens ``start`` to ``stop``, one for each group."""
    stored = parts.codes_along_tokens(ZERO_POINTS, bits, start, stop)
    if parts.matrix.scheme != V1:
        return stored
    if (stored == (1 << bits) - 1).any():
        raise AmbiguousZeroError("a zero point of GPTQ v1 overflows, and loaders disagree about its value")
    return stored + 1


def awq_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of AWQ codes: (code − zero point) · scale."""
    columns = (parts.matrix.shape or (0, 0))[1]
    width = (parts.matrix.block or (1, columns))[1]
    groups = np.arange(columns) // width
    scales = parts.rows(SCALES, start, stop)[:, groups]
    zero_points = _awq_codes(parts, ZERO_POINTS, start, stop)[:, groups]
    codes = _awq_codes(parts, CODES, start, stop)
    return uniform(codes, scales, zero_points, ends=(0, 15), roundoff=parts.roundoff(SCALES))


def _awq_codes(parts: PartReader, role: str, start: int, stop: int) -> Array:
    """Return the codes of tokens ``start`` to ``stop``: a word holds eight tokens of a column."""
    first, end = start // 8, -(-stop // 8)
    packed = np.ascontiguousarray(parts.raw(role, first, end)).view("<u4")
    codes = np.empty((end - first, 8, packed.shape[1]), np.int64)
    for position, column in enumerate(_AWQ_ORDER):
        codes[:, column] = packed >> np.uint32(4 * position) & np.uint32(0xF)
    return codes.reshape(-1, packed.shape[1])[start - first * 8 : stop - first * 8]


# Dequantise the formats of compressed-tensors.


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
    zero_points = _packed_zero_points(parts, start, stop, groups, half)
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


def _packed_zero_points(parts: PartReader, start: int, stop: int, groups: Array | None, half: int) -> Array | int:
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


# Dequantise bitsandbytes, 4 and 8 bit.


EIGHT_BIT_DIVISOR = 127.0


def four_bit_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit codes: map[code] · absmax. Blocks run over the rows' ends."""
    columns = (parts.matrix.shape or (0, 0))[1]
    block = (parts.matrix.block or (1, columns))[1]
    first, end = start * columns, stop * columns
    packed = parts.flat(CODES, first // 2, -(-end // 2))
    codes = nibbles(packed, high_first=True)[first % 2 :][: end - first]
    table = parts.whole(CODE_MAP)
    scales, error = _absmax(parts, first // block, -(-end // block))
    index = np.arange(first, end) // block - first // block
    decoded = from_table(codes, table, half_gaps(table), scales[index], parts.roundoff(NESTED_SCALES))
    bound = decoded.bound + np.abs(table[codes]) * error[index]
    shape = (stop - start, columns)
    return Decoded(decoded.values.reshape(shape), decoded.step.reshape(shape), bound.reshape(shape))


def _absmax(parts: PartReader, first: int, end: int) -> tuple[Array, Array]:
    """Return the scales of blocks, and how far the rounding of nested scales may have moved them.

    Nested scales are computed in float32, as bitsandbytes does.
    """
    if parts.dtype(SCALES) != "U8":
        scales = parts.rows(SCALES, first, end)
        return scales, np.zeros_like(scales)
    state = quant_state(parts.flat(STATE, 0, parts.shape(STATE)[0]).tobytes())
    if state is None or not state.nested_block:
        raise ValueError("its quant_state lacks nested_blocksize")
    codes = parts.flat(SCALES, first, end)
    table, maxima = parts.whole(NESTED_MAP), parts.whole(NESTED_SCALES)
    maximum = maxima[np.arange(first, end) // state.nested_block]
    scales = (table.astype("f4")[codes] * maximum.astype("f4") + np.float32(state.nested_offset)).astype(np.float64)
    return scales, half_gaps(table)[codes] * maximum + 2.0**-22 * np.abs(scales)


def eight_bit_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 8-bit codes: code · SCB; the divisor is 127."""
    codes = parts.rows(CODES, start, stop)
    return uniform(codes, parts.grid(SCALES, start, stop), 0.0, ends=(-127, 127), roundoff=parts.roundoff(SCALES))


def subclass_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes that are whole bytes: (code − zero point) · scale."""
    scales, roundoff, dtype = parts.grid(SCALES, start, stop), parts.roundoff(SCALES), parts.dtype(CODES)
    if dtype in TABLES:
        codes = parts.raw(CODES, start, stop)
        return from_table(codes, TABLES[dtype], half_gaps(TABLES[dtype]), scales, roundoff)
    zero_points: Array | float = parts.grid(ZERO_POINTS, start, stop) if ZERO_POINTS in parts else 0.0
    return uniform(parts.rows(CODES, start, stop), scales, zero_points, ends=(-128, 127), roundoff=roundoff)
