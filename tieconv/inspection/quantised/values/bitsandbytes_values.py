"""Dequantise bitsandbytes, 4 and 8 bit. Imports numpy: import it lazily."""

from __future__ import annotations

import numpy as np

from tieconv.inspection.quantised.schemes.bitsandbytes import quant_state
from tieconv.inspection.quantised.schemes.interface import CODE_MAP, CODES, NESTED_MAP, NESTED_SCALES, SCALES, STATE
from tieconv.inspection.quantised.values.code_bits import nibbles
from tieconv.inspection.quantised.values.number_types import Array, half_gaps
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, from_table, uniform

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
