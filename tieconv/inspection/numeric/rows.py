"""Measure by how much two float tensors of the same shape differ. Imports numpy: import it lazily.

``max_abs`` is in the tensors' own unit, ``max_ulp`` in representable values of their common type.
``relative_rms`` = rms(right - left) / rms(left). Rows run along the first dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, sqrt

import numpy as np

from tieconv.inspection.numeric.bits import (
    F32,
    F64,
    PIECE,
    Array,
    Format,
    Pair,
    convert,
    decode,
    is_finite,
    is_nan,
    magnitude,
    ulp_distance,
)

LISTED_RANGES = 8
"""Row ranges that are listed; further ones are only counted."""

_WIDE = 64
"""Elements from which on a row is reduced on its own."""

# Sums of squares outside these bounds may have lost terms to underflow or include an infinity.
_SAFE_SQUARES = (1e-20, 1e30)

_LEAST_SQUARES = 1e-280
"""A smaller sum of squares has lost digits, or terms, to underflow."""


@dataclass(slots=True)
class Rows:
    """Count rows in ascending order, and list the first ranges of consecutive ones."""

    count: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    complete: bool = True
    last_row: int = -1

    def add(self, first: int, flags: Array) -> None:
        """Count the rows ``first + i`` where ``flags[i]``; a row seen in two parts counts once."""
        numbers = np.flatnonzero(flags) + first
        if len(numbers) and numbers[0] == self.last_row:
            numbers = numbers[1:]
        if not len(numbers):
            return
        self.count += len(numbers)
        self._extend(numbers)
        self.last_row = int(numbers[-1])

    def _extend(self, numbers: Array) -> None:
        breaks = np.flatnonzero(np.diff(numbers) > 1)[: LISTED_RANGES + 1]
        starts = [int(numbers[0]), *(int(numbers[i + 1]) for i in breaks)]
        ends = [*(int(numbers[i]) + 1 for i in breaks), int(numbers[-1]) + 1]
        for start, end in zip(starts, ends, strict=True):
            if self.complete and self.ranges and self.ranges[-1][1] == start:
                self.ranges[-1][1] = end
            elif len(self.ranges) < LISTED_RANGES:
                self.ranges.append([start, end])
            else:
                self.complete = False


@dataclass(slots=True)
class Difference:
    """Sums and extremes over the elements where both values are finite."""

    rows: int
    differing: Rows = field(default_factory=Rows)
    nan: Rows = field(default_factory=Rows)
    max_ulp: int = 0
    max_abs: float = 0.0
    left_squares: float = 0.0
    right_squares: float = 0.0
    squares: float = 0.0
    unbounded: bool = False  # an infinity or a NaN on one side only
    payloads_differ: bool = False  # two NaNs with different bits

    @property
    def sign_of_zero_only(self) -> bool:
        """Whether +0 against -0 is the only difference."""
        return not (self.max_ulp or self.unbounded or self.payloads_differ)

    @property
    def relative_rms(self) -> float | None:
        """The figure; ``None`` if it is infinite, undefined, or too small to be squared."""
        if self.unbounded or not isfinite(self.squares):
            return None
        if self.squares < _LEAST_SQUARES:
            return None if self.max_abs else 0.0
        return _finite(sqrt(self.squares / self.left_squares)) if self.left_squares >= _LEAST_SQUARES else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between the whole tensors; ``None`` if it is undefined."""
        lengths = sqrt(self.left_squares) * sqrt(self.right_squares)
        if self.unbounded or not lengths or min(self.left_squares, self.right_squares) < _LEAST_SQUARES:
            return None
        product = (self.left_squares + self.right_squares - self.squares) / 2
        return _finite(max(-1.0, min(1.0, product / lengths)))

    def add_plain(self, left: Array, right: Array, form: Format, row: int, width: int) -> bool:
        """Add a piece whose squares are safe to sum, which also shows that it is finite; else do nothing."""
        a = _values(left, form)
        same = np.array_equal(left, right)
        b = a if same else _values(right, form)
        with np.errstate(all="ignore"):
            left_squares = float(np.dot(a, a))
            right_squares = left_squares if same else float(np.dot(b, b))
        if not all(_SAFE_SQUARES[0] < total < _SAFE_SQUARES[1] for total in (left_squares, right_squares)):
            return False
        self.left_squares += left_squares
        self.right_squares += right_squares
        if not same:
            self.differing.add(row, _rows_of(left != right, width))
            self._add_distances(b - a, ulp_distance(left, right, form))
        return True

    def add_careful(self, left: Array, right: Array, form: Format, row: int, width: int) -> None:
        """Add a piece that may hold NaN, infinities or extreme magnitudes."""
        unequal = left != right
        if not magnitude(left | right, form).any():  # zeros of either sign
            self.differing.add(row, _rows_of(unequal, width))
            return
        nan_left, nan_right = is_nan(left, form), is_nan(right, form)
        one_nan = nan_left != nan_right
        finite = is_finite(left, form) & is_finite(right, form)
        self.differing.add(row, _rows_of(unequal, width))
        self.nan.add(row, _rows_of(one_nan, width))
        self.unbounded |= bool((unequal & ~finite & ~(nan_left & nan_right)).any())
        self.payloads_differ |= bool((unequal & nan_left & nan_right).any())
        a = np.where(finite, decode(left, form), 0).astype("<f8")
        b = np.where(finite, decode(right, form), 0).astype("<f8")
        with np.errstate(all="ignore"):
            self.left_squares += float(np.dot(a, a))
            self.right_squares += float(np.dot(b, b))
            self._add_distances(b - a, np.where(nan_left | nan_right, 0, ulp_distance(left, right, form)))

    def _add_distances(self, distance: Array, ulps: Array) -> None:
        self.squares += float(np.dot(distance, distance))
        self.max_abs = max(self.max_abs, float(distance.max()), -float(distance.min()))
        self.max_ulp = max(self.max_ulp, int(ulps.max()))


def difference(pair: Pair) -> Difference:
    """Compare every element of a pair; raises what the reader raises."""
    common = _common(pair)
    rows, width = _matrix(pair)
    differences = Difference(rows)
    for row, start, stop in _row_pieces(rows, width):
        left, right = (
            convert(bits, form, common) for bits, form in zip(pair.read(start, stop), pair.formats, strict=True)
        )
        if not differences.add_plain(left, right, common, row, width):
            differences.add_careful(left, right, common, row, width)
    return differences


def _common(pair: Pair) -> Format:
    left, right = pair.formats
    if left == right:
        return left
    return F64 if F64 in (left, right) else F32


def _matrix(pair: Pair) -> tuple[int, int]:
    """Return (rows, elements per row); a scalar is one row."""
    rows = pair.left.shape[0] if pair.left.shape else 1
    return rows, pair.left.elements // rows


def _row_pieces(rows: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, first element, last element + 1) of pieces of whole rows, or of parts of one row."""
    if width <= PIECE:
        step = PIECE // width
        for row in range(0, rows, step):
            yield row, row * width, min(row + step, rows) * width
        return
    for row in range(rows):
        for start in range(row * width, (row + 1) * width, PIECE):
            yield row, start, min(start + PIECE, (row + 1) * width)


def _values(bits: Array, form: Format) -> Array:
    """Return values in a type that can hold their difference: float32 for the short types, else float64."""
    with np.errstate(invalid="ignore"):
        return decode(bits, form) if form.width == 2 else decode(bits, form).astype("<f8", copy=False)


def _rows_of(flags: Array, width: int) -> Array:
    """Return which rows of a piece have a flag set; the piece is whole rows or part of one."""
    if width == 1:
        return flags
    width = width if len(flags) % width == 0 else len(flags)
    if width >= _WIDE:
        rows: Array = np.any(flags.reshape(-1, width), axis=1)
        return rows
    # Reducing each of many short rows costs more than finding their elements.
    rows = np.zeros(len(flags) // width, bool)
    rows[np.flatnonzero(flags) // width] = True
    return rows


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
