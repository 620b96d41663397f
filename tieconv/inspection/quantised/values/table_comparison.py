"""Compare the values of two matrices over every element, with bounded memory. Imports numpy: import it lazily."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypeGuard

import numpy as np

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.quantised_matrix import ErrorFigures, PairRelation, PairState, QuantisedMatrix
from tieconv.inspection.quantised.values.number_types import Array
from tieconv.inspection.quantised.values.part_reader import Decoded
from tieconv.inspection.quantised.values.row_decoders import FloatRows, QuantisedRows, Rows, row_blocks

CALIBRATED_STEPS = 0.5
"""Largest rms of the error, in steps of the code, of a calibrated copy.

Rounding to nearest leaves 0.29, and GPTQ 0.31 to 0.40 (`test_calibrated.py`). Unrelated matrices have 1 and more.
"""
CALIBRATED_RMS = 0.6
"""Largest rms of the error, relative to the values, of a calibrated copy. Unrelated matrices have 1.4."""
_ULP = 1 + 2.0**-40
"""Room for the float64 arithmetic of the comparison itself."""


class _Sums:
    """The figures of the blocks that were compared."""

    def __init__(self) -> None:
        self.largest = self.of_bound = 0.0
        self.squares = self.step_squares = self.value_squares = 0.0
        self.rows_differing = self.elements = 0
        self.nan = False

    def add(self, left: Decoded, right: Decoded, error: Array) -> None:
        """Add a block: the error of each element, and how much rounding allows."""
        bound = (left.bound + right.bound) * _ULP
        step = np.maximum(left.step, right.step)
        self.nan = self.nan or bool(np.isnan(error).any())
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(error == 0, 0.0, error / bound)
            steps = np.where(error == 0, 0.0, error / step)
        self.largest = max(self.largest, float(error.max()))
        self.of_bound = max(self.of_bound, float(share.max()))
        self.squares += float(np.square(error).sum())
        self.step_squares += float(np.square(steps).sum())
        self.value_squares += float(np.square(left.values).sum())
        self.rows_differing += int((error != 0).any(axis=1).sum())
        self.elements += error.size

    def figures(self, rows: int) -> ErrorFigures:
        """Return the figures; ``None`` for one that is not finite."""
        relative = (self.squares / self.value_squares) ** 0.5 if self.value_squares else float("nan")
        steps = (self.step_squares / max(self.elements, 1)) ** 0.5
        largest, of_bound, rms_steps, relative_rms = map(self._finite, (self.largest, self.of_bound, steps, relative))
        return ErrorFigures(largest, of_bound, rms_steps, relative_rms, self.rows_differing, rows)

    def _finite(self, number: float) -> float | None:
        return number if isfinite(number) and not self.nan else None


def compare_values(
    embedding: QuantisedMatrix | TensorRecord,
    head: QuantisedMatrix | TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> PairRelation:
    """Return the relation of two matrices of one shape. Raises what the reader raises."""
    shape = (embedding.shape or (0, 0))[0], (embedding.shape or (0, 0))[1]
    copies = not (isinstance(embedding, QuantisedMatrix) and isinstance(head, QuantisedMatrix))
    sums = _Sums()
    try:
        left, right = _sides(embedding, head, tensors, reader)
        with np.errstate(all="ignore"):
            for start, stop in row_blocks(shape):
                _add(sums, left, right, start, stop, copies)
    except ValueError as why:
        return PairRelation(PairState.UNREAD, str(why))
    return _judged(sums, shape[0], copies)


def _sides(
    embedding: QuantisedMatrix | TensorRecord,
    head: QuantisedMatrix | TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> tuple[Rows, Rows]:
    """Return the rows of both. Those of a float matrix allow for the arithmetic in which it was quantised."""
    quantised = [QuantisedRows(table, tensors, reader) for table in (embedding, head) if _is_quantised(table)]
    roundoff = quantised[0].roundoff
    waiting = iter(quantised)
    left, right = (
        FloatRows(table, reader, roundoff) if isinstance(table, TensorRecord) else next(waiting)
        for table in (embedding, head)
    )
    return left, right


def _is_quantised(table: QuantisedMatrix | TensorRecord) -> TypeGuard[QuantisedMatrix]:
    return isinstance(table, QuantisedMatrix)


def _add(sums: _Sums, left: Rows, right: Rows, start: int, stop: int, copies: bool) -> None:
    """Compare one block. Both sides are multiplied by both divisors, so that nothing is rounded by a division."""
    first, second = left.block(start, stop), right.block(start, stop)
    crossed = first.values * right.divisor, second.values * left.divisor
    scale = abs(left.divisor * right.divisor)
    error = np.abs(crossed[0] - crossed[1]) / scale
    error[(crossed[0] == crossed[1])] = 0.0
    sums.add(_divided(first, left.divisor), _divided(second, right.divisor), error)


def _divided(decoded: Decoded, divisor: float) -> Decoded:
    size = abs(divisor)
    return Decoded(decoded.values / divisor, decoded.step / size, decoded.bound / size)


def _judged(sums: _Sums, rows: int, copies: bool) -> PairRelation:
    figures = sums.figures(rows)
    if sums.nan:
        return PairRelation(PairState.UNREAD, "a value is not a number", figures=figures)
    if not sums.rows_differing and not copies:
        return PairRelation(PairState.EQUAL_VALUES, figures=figures)
    if copies and figures.of_bound is not None and figures.of_bound <= 1:
        return PairRelation(PairState.COPY, figures=figures)
    if copies and _calibrated(figures):
        return PairRelation(PairState.CALIBRATED_COPY, figures=figures)
    return PairRelation(PairState.DIFFERENT, figures=figures)


def _calibrated(figures: ErrorFigures) -> bool:
    return (
        figures.rms_steps is not None
        and figures.relative_rms is not None
        and figures.rms_steps <= CALIBRATED_STEPS
        and figures.relative_rms <= CALIBRATED_RMS
    )
