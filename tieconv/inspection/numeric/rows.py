"""Measure by how much two float tensors of the same shape differ. Imports numpy: import it lazily.

``max_abs`` is in the tensors' own unit, ``max_ulp`` in representable values of their common type.
``relative_rms`` = rms(right - left) / rms(left). Rows run along the first dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, frexp, inf, isfinite, ldexp, log10, nextafter, sqrt

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric import bits as floats

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

    def add(self, first: int, flags: floats.Array) -> None:
        """Count the rows ``first + i`` where ``flags[i]``; a row seen in two parts counts once."""
        numbers = np.flatnonzero(flags) + first
        if len(numbers) and numbers[0] == self.last_row:
            numbers = numbers[1:]
        if not len(numbers):
            return
        self.count += len(numbers)
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
        self.last_row = int(numbers[-1])


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

    def add_plain(self, left: floats.Array, right: floats.Array, form: floats.Format, row: int, width: int) -> bool:
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
            self._add_distances(b - a, floats.ulp_distance(left, right, form))
        return True

    def add_careful(self, left: floats.Array, right: floats.Array, form: floats.Format, row: int, width: int) -> None:
        """Add a piece that may hold NaN, infinities or extreme magnitudes."""
        unequal = left != right
        if not floats.magnitude(left | right, form).any():  # zeros of either sign
            self.differing.add(row, _rows_of(unequal, width))
            return
        nan_left, nan_right = floats.is_nan(left, form), floats.is_nan(right, form)
        one_nan = nan_left != nan_right
        finite = floats.is_finite(left, form) & floats.is_finite(right, form)
        self.differing.add(row, _rows_of(unequal, width))
        self.nan.add(row, _rows_of(one_nan, width))
        self.unbounded |= bool((unequal & ~finite & ~(nan_left & nan_right)).any())
        self.payloads_differ |= bool((unequal & nan_left & nan_right).any())
        a = np.where(finite, floats.decode(left, form), 0).astype("<f8")
        b = np.where(finite, floats.decode(right, form), 0).astype("<f8")
        with np.errstate(all="ignore"):
            self.left_squares += float(np.dot(a, a))
            self.right_squares += float(np.dot(b, b))
            self._add_distances(b - a, np.where(nan_left | nan_right, 0, floats.ulp_distance(left, right, form)))

    def _add_distances(self, distance: floats.Array, ulps: floats.Array) -> None:
        self.squares += float(np.dot(distance, distance))
        self.max_abs = max(self.max_abs, float(distance.max()), -float(distance.min()))
        self.max_ulp = max(self.max_ulp, int(ulps.max()))


def difference(pair: floats.Pair) -> Difference:
    """Compare every element of a pair; raises what the reader raises."""
    formats = set(pair.formats)
    common = formats.pop() if len(formats) == 1 else floats.F64 if floats.F64 in formats else floats.F32
    rows = pair.left.shape[0] if pair.left.shape else 1
    width = pair.left.elements // rows
    differences = Difference(rows)
    for row, start, stop in _row_pieces(rows, width):
        left, right = (
            floats.convert(bits, form, common) for bits, form in zip(pair.read(start, stop), pair.formats, strict=True)
        )
        if not differences.add_plain(left, right, common, row, width):
            differences.add_careful(left, right, common, row, width)
    return differences


def _row_pieces(rows: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, first element, last element + 1) of pieces of whole rows, or of parts of one row."""
    if width <= floats.PIECE:
        step = floats.PIECE // width
        for row in range(0, rows, step):
            yield row, row * width, min(row + step, rows) * width
        return
    for row in range(rows):
        for start in range(row * width, (row + 1) * width, floats.PIECE):
            yield row, start, min(start + floats.PIECE, (row + 1) * width)


def _values(bits: floats.Array, form: floats.Format) -> floats.Array:
    """Return values in a type that can hold their difference: float32 for the short types, else float64."""
    with np.errstate(invalid="ignore"):
        return floats.decode(bits, form) if form.width == 2 else floats.decode(bits, form).astype("<f8", copy=False)


def _rows_of(flags: floats.Array, width: int) -> floats.Array:
    """Return which rows of a piece have a flag set; the piece is whole rows or part of one."""
    if width == 1:
        return flags
    width = width if len(flags) % width == 0 else len(flags)
    if width >= _WIDE:
        rows: floats.Array = np.any(flags.reshape(-1, width), axis=1)
        return rows
    # Reducing each of many short rows costs more than finding their elements.
    rows = np.zeros(len(flags) // width, bool)
    rows[np.flatnonzero(flags) // width] = True
    return rows


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


# Decide whether one float tensor is a multiple of another one.
#
# Each pair of finite values bounds the possible factors. The bounds of a sample refute most pairs and suggest a factor.
# Only a pass over every element with that factor proves it. If that fails, every element bounds the factor.
@record
class Scaling:
    """``right`` = ``factor`` * ``left`` of ``pair``, rounded; off by at most ``max_ulp`` (0 or 1)."""

    pair: floats.Pair
    factor: float
    max_ulp: int
    exact: bool

    @property
    def power_of_two(self) -> bool:
        """Whether the factor changes exponents and signs only."""
        return abs(frexp(self.factor)[0]) == 0.5


def scaling(pair: floats.Pair) -> Scaling | None:
    """Return the factor between the sides of the pair, with ``Scaling.pair`` as its orientation.

    Exact claims precede those within one ulp, ``left`` * factor precedes ``right`` * factor. ``None`` if no factor was
    proved, or if 1 fits a sample too. Raises what the reader raises.
    """
    sides = [(side, factor_bounds(*side.sample(), *side.formats)) for side in (pair, pair.reversed())]
    if any(bounds.informative and 1 in bounds.close for _, bounds in sides):
        return None
    close = None
    for side, bounds in sides:
        close = close if bounds.refuted else _fit(side, bounds, close)
        if close and close.exact:
            break
    return close


def _fit(pair: floats.Pair, bounds: Bounds, close: Scaling | None) -> Scaling | None:
    """Return an exact proof, else ``close``, else the proof of a factor within one ulp.

    The bounds of the sample suggest a factor, then those of every element.
    """
    claim = _proof_within(pair, bounds)
    if claim and claim.exact:
        return claim
    close = close or claim
    for left, right in pair.pieces():
        bounds &= factor_bounds(left, right, *pair.formats)
        if bounds.refuted or (close and not bounds.exact.possible):
            return close
    claim = _proof_within(pair, bounds)
    return claim if claim and claim.exact else close or claim


def _proof_within(pair: floats.Pair, bounds: Bounds) -> Scaling | None:
    """Return the proof of a factor within the bounds, preferably within those of exact factors."""
    interval = bounds.exact if bounds.exact.possible else bounds.close
    if not (isfinite(interval.low) and isfinite(interval.high)):
        return None
    # At an end of the interval a product may round the other way, but not in the middle.
    # A power of two is likely, or a rounded root of the width, or else the shortest number.
    shape = pair.left.shape
    sign = -1.0 if interval.high < 0 else 1.0
    low, high = sorted((abs(interval.low), abs(interval.high)))
    inside = Interval(low, high)
    # The least power of two that is at least ``low`` (positive).
    mantissa, exponent = frexp(low)
    named = [ldexp(0.5, exponent if mantissa == 0.5 else min(exponent + 1, 1024)), *_roots(shape[-1] if shape else 1)]
    shortest = min(_shortest_decimal(inside), _shortest_binary(inside))[1]
    likely = sign * next((factor for factor in named if factor in inside), shortest)
    close = None
    for factor in (likely, _middle(interval), *_few(interval)):
        claim = _prove(pair, factor) if isfinite(1 / factor) else None
        if claim and claim.exact:
            return claim
        close = close or claim
    return close


def _prove(pair: floats.Pair, factor: float) -> Scaling | None:
    """Compare every element with the rounded product; no claim if one is off by more than one ulp."""
    source, target = pair.formats
    max_ulp, exact = 0, True
    for left, right in pair.pieces():
        with np.errstate(all="ignore"):
            expected = floats.encode(floats.decode(left, source).astype("<f8") * factor, target)
        if np.array_equal(expected, right):
            continue
        nan = floats.is_nan(right, target)
        if (nan != floats.is_nan(expected, target)).any():
            off = None
        else:
            off = np.where(nan, 0, floats.ulp_distance(expected, right, target))
        if off is None or off.max() > 1:
            return None
        max_ulp, exact = max(max_ulp, int(off.max())), False
    return Scaling(pair, factor, max_ulp, exact)


# Bound the factor between two arrays, from elements that are finite on both sides.

_WIDEN = 2 * float(np.finfo(np.float64).eps)
"""Relative slack for the roundings of the bounds' own arithmetic."""


_FEW = 32


@record
class Interval:
    """Factors from ``low`` to ``high``."""

    low: float = -inf
    high: float = inf

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    @property
    def possible(self) -> bool:
        return self.low <= self.high

    def __contains__(self, factor: float) -> bool:
        return self.low <= factor <= self.high


ANY = Interval()
NONE = Interval(inf, -inf)


@record
class Bounds:
    """Factors that can produce every value so far exactly, and to one ulp; slightly wider than the truth."""

    exact: Interval = ANY
    close: Interval = ANY

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(self.exact & other.exact, self.close & other.close)

    @property
    def informative(self) -> bool:
        return self.close != ANY

    @property
    def refuted(self) -> bool:
        """Whether no factor is left that keeps something (not 0) and changes something (not 1)."""
        return self.informative and (not self.close.possible or 0 in self.close or 1 in self.close)


def factor_bounds(left: floats.Array, right: floats.Array, source: floats.Format, target: floats.Format) -> Bounds:
    """Return the bounds from the elements that are finite on both sides."""
    sizes = floats.magnitude(left, source)
    finite = floats.is_finite(right, target)
    # No factor scales 0 to more than the smallest subnormal, or exactly to that.
    most = int(floats.magnitude(right, target).max(initial=0, where=finite & (sizes == 0)))
    if most > 1:
        return Bounds(NONE, NONE)
    exact = NONE if most else ANY
    used = finite & (sizes != 0) & (sizes < source.infinity)
    if not used.any():
        return Bounds(exact)
    values = floats.decode(left[used], source).astype("<f8")
    steps = floats.monotone(right[used], target)
    steps = np.where(values < 0, -steps, steps)
    values = np.abs(values)
    bounds = Bounds(*(_interval(values, steps, target, ulps) for ulps in (0, 1)))
    return bounds & Bounds(exact)


def _interval(values: floats.Array, steps: floats.Array, form: floats.Format, ulps: int) -> Interval:
    """Return the factors for which value * factor can round to within ``ulps`` of the number at each step."""
    with np.errstate(all="ignore"):
        low = (_value(steps - ulps - 1, form) + _value(steps - ulps, form)) / 2 / values
        high = (_value(steps + ulps, form) + _value(steps + ulps + 1, form)) / 2 / values
        # Multiply, because adding the slack to an infinite bound would give NaN.
        low, high = low * (1 - np.copysign(_WIDEN, low)), high * (1 + np.copysign(_WIDEN, high))
    return Interval(float(low.max()), float(high.min()))


def _value(steps: floats.Array, form: floats.Format) -> floats.Array:
    """Return the float64 values of monotone integers; infinity beyond the largest finite one."""
    bits = np.minimum(np.abs(steps), form.infinity).astype(form.bits)
    values: floats.Array = np.copysign(floats.decode(bits, form).astype("<f8"), steps)
    return values


def _roots(width: int) -> list[float]:
    roots = np.array([sqrt(width), 1 / sqrt(width)])
    rounded = [
        floats.decode(floats.encode(roots, form), form).astype("<f8") for form in (floats.BF16, floats.F16, floats.F32)
    ]
    return [float(root) for group in (roots, *rounded) for root in group]


def _middle(interval: Interval) -> float:
    return interval.low + (interval.high - interval.low) / 2


def _few(interval: Interval) -> list[float]:
    """Return each float64 in an interval with few of them: between F64 tensors the neighbour of the factor may fail."""
    numbers = [interval.low]
    while numbers[-1] < interval.high:
        if len(numbers) == _FEW:
            return []
        numbers.append(nextafter(numbers[-1], interval.high))
    return numbers


def _shortest_decimal(interval: Interval) -> tuple[float, float]:
    """Return (digits, the number with the fewest decimal digits near the middle of a positive interval)."""
    middle = _middle(interval)
    for digits in range(1, 17):
        number = float(f"{middle:.{digits - 1}e}")
        if number in interval:
            return digits, number
    return 17, middle


def _shortest_binary(interval: Interval) -> tuple[float, float]:
    """Return (bits as decimal digits, the number with the fewest bits near the middle of a positive interval)."""
    mantissa, exponent = frexp(_middle(interval))
    for bits in range(1, 53):
        number = ldexp(round(ldexp(mantissa, bits)), exponent - bits)
        if number in interval:
            return bits * log10(2), number
    return ceil(53 * log10(2)), ldexp(mantissa, exponent)
