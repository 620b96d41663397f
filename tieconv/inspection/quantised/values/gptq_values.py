"""Dequantise GPTQ and AWQ. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.schemes.gptq import V1
from tieconv.inspection.quantised.schemes.interface import CODES, GROUP_INDEX, SCALES, ZERO_POINTS
from tieconv.inspection.quantised.values.code_bits import unpack_words
from tieconv.inspection.quantised.values.number_types import Array
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, uniform

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
