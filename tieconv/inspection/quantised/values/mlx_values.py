"""Dequantise the modes of MLX. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.schemes.interface import BIASES, CODES, SCALES
from tieconv.inspection.quantised.values.code_bits import nibbles, unpack_words
from tieconv.inspection.quantised.values.compressed_tensors_values import POWER_OF_TWO_EDGE, power_grid
from tieconv.inspection.quantised.values.number_types import E2M1, E4M3, half_gaps
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, from_table, uniform

_AFFINE_EDGE = 1.0
"""MLX moves a scale so that one end of the group is exact. The opposite end may be a whole step outside the codes."""
_GAPS = half_gaps(E2M1)
_MX_GAPS = half_gaps(E2M1, edge=6 * POWER_OF_TWO_EDGE)
_MX8_GAPS = half_gaps(E4M3, edge=448 * POWER_OF_TWO_EDGE)


def affine_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of affine codes: code · scale + bias."""
    columns, bits = (parts.matrix.shape or (0, 0))[1], parts.matrix.bits or 4
    codes = unpack_words(parts.raw(CODES, start, stop), bits, columns)
    scales, biases = parts.grid(SCALES, start, stop), parts.grid(BIASES, start, stop)
    roundoff = parts.roundoff(SCALES)
    decoded = uniform(codes, scales, 0.0, ends=(0, (1 << bits) - 1), roundoff=roundoff, edge=_AFFINE_EDGE)
    return Decoded(decoded.values + biases, decoded.step, decoded.bound + roundoff * np.abs(biases))


def nvfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times an 8-bit float."""
    codes = nibbles(parts.raw(CODES, start, stop))
    scales = parts.grid(SCALES, start, stop)
    scales = scales if parts.dtype(SCALES) == "F8_E4M3" else E4M3[scales.astype(np.int64)]
    return from_table(codes, E2M1, _GAPS, scales, 2.0**-4)


def mxfp4_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 4-bit floats times a power of two."""
    return from_table(nibbles(parts.raw(CODES, start, stop)), E2M1, _MX_GAPS, power_grid(parts, start, stop), 0.0)


def mxfp8_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of 8-bit floats times a power of two."""
    return from_table(parts.raw(CODES, start, stop), E4M3, _MX8_GAPS, power_grid(parts, start, stop), 0.0)
