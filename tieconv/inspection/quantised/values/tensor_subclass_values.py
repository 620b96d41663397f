"""Dequantise 8-bit codes of torchao and optimum-quanto. Imports numpy: import it lazily."""

from __future__ import annotations

from tieconv.inspection.quantised.schemes.interface import CODES, SCALES, ZERO_POINTS
from tieconv.inspection.quantised.values.number_types import TABLES, Array, half_gaps
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, from_table, uniform


def byte_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of codes that are whole bytes: (code − zero point) · scale."""
    scales, roundoff, dtype = parts.grid(SCALES, start, stop), parts.roundoff(SCALES), parts.dtype(CODES)
    if dtype in TABLES:
        codes = parts.raw(CODES, start, stop)
        return from_table(codes, TABLES[dtype], half_gaps(TABLES[dtype]), scales, roundoff)
    zero_points: Array | float = parts.grid(ZERO_POINTS, start, stop) if ZERO_POINTS in parts else 0.0
    return uniform(parts.rows(CODES, start, stop), scales, zero_points, ends=(-128, 127), roundoff=roundoff)
