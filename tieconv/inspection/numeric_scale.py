"""Whether one float tensor is a multiple of another one. Imports numpy: import it lazily.

Each pair of finite values bounds the factors that could have made one of the other. The samples'
bounds refute most pairs and suggest a factor; only a pass over every element with that factor proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, frexp, inf, isfinite, ldexp, log10, sqrt

import numpy as np

from tieconv.inspection.numeric import (
    BF16,
    F16,
    F32,
    Array,
    Format,
    Pair,
    decode,
    encode,
    is_finite,
    is_nan,
    monotone,
    ulp_distance,
)

_TRIES = 5
"""Factors that are tried with a pass over every element before the bounds are tightened."""

_WIDEN = 2 * float(np.finfo(np.float64).eps)
"""Relative slack for the roundings of the bounds' own arithmetic."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """``right`` = ``factor`` * ``left`` of ``pair``, rounded; off by at most ``max_ulp`` (0 or 1)."""

    pair: Pair
    factor: float
    max_ulp: int
    exact: bool

    @property
    def power_of_two(self) -> bool:
        """Whether the factor changes exponents and signs only."""
        return abs(frexp(self.factor)[0]) == 0.5


@dataclass(frozen=True, slots=True)
class _Interval:
    low: float = -inf
    high: float = inf

    def __and__(self, other: _Interval) -> _Interval:
        return _Interval(max(self.low, other.low), min(self.high, other.high))

    def __contains__(self, factor: float) -> bool:
        return self.low <= factor <= self.high


_ANY = _Interval()
_NONE = _Interval(inf, -inf)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Factors that could give every value seen exactly, and to one ulp; a little wider than the truth."""

    exact: _Interval = _ANY
    close: _Interval = _ANY

    def __and__(self, other: _Bounds) -> _Bounds:
        return _Bounds(self.exact & other.exact, self.close & other.close)

    @property
    def informative(self) -> bool:
        return self.close != _ANY

    @property
    def admissible(self) -> bool:
        """Whether a factor may exist that keeps something (not 0) and changes something (not 1)."""
        return self.informative and self.close.low <= self.close.high and 0 not in self.close and 1 not in self.close


def scaling(pair: Pair) -> Scaling | None:
    """The factor that makes one side of the pair of the other, as ``Scaling.pair`` orients them.

    Exact claims come before those within one ulp, ``left`` * factor before ``right`` * factor.
    ``None`` where no factor was proved, and where 1 would do as well. Raises what the reader raises.
    """
    sides = [(side, _sample_bounds(side)) for side in (pair, pair.reversed())]
    if any(bounds.informative and 1 in bounds.close for _, bounds in sides):
        return None
    close = None
    for side, bounds in sides:
        found = _fit(side, bounds)
        if found and found.exact:
            return found
        close = close or found
    return close


def _fit(pair: Pair, bounds: _Bounds) -> Scaling | None:
    """The best proof with the sample's bounds; failing an exact one, with those of every element."""
    close = _first_proved(pair, bounds)
    if (close and close.exact) or (bounds.informative and not bounds.admissible):
        return close
    found = _first_proved(pair, _full_bounds(pair))
    return found if found and (found.exact or not close) else close


def _first_proved(pair: Pair, bounds: _Bounds) -> Scaling | None:
    """The first exact claim among the candidates, else the first within one ulp."""
    close = None
    for factor in _candidates(bounds, pair.left.shape) if bounds.admissible else []:
        found = _prove(pair, factor)
        if found and found.exact:
            return found
        close = close or found
    return close


def _prove(pair: Pair, factor: float) -> Scaling | None:
    """Compare every element with the rounded product; ``None`` where one is off by more than one ulp."""
    times = _Multiplier(pair.formats, factor)
    claim = Scaling(pair, factor, 0, True)
    for left, right in pair.pieces():
        expected = times(left)
        if np.array_equal(expected, right):
            continue
        off = _largest_miss(expected, right, pair.formats[1])
        if off is None or off > 1:
            return None
        claim = replace(claim, max_ulp=max(claim.max_ulp, off), exact=False)
    return claim


class _Multiplier:
    """The bits of factor * value, rounded; by table for the 65,536 values of a type of 16 bits."""

    def __init__(self, formats: tuple[Format, Format], factor: float) -> None:
        self.formats, self.factor = formats, factor
        narrow = formats[0].width == 2
        self.table = self._product(np.arange(2**16, dtype="<u2")) if narrow else None

    def __call__(self, bits: Array) -> Array:
        return self._product(bits) if self.table is None else self.table[bits]

    def _product(self, bits: Array) -> Array:
        source, target = self.formats
        with np.errstate(all="ignore"):
            return encode(decode(bits, source).astype("<f8") * self.factor, target)


def _largest_miss(expected: Array, actual: Array, form: Format) -> int | None:
    """The largest distance in ulps, two NaNs being equal; ``None`` where a NaN faces a number."""
    nan = is_nan(actual, form)
    if (nan != is_nan(expected, form)).any():
        return None
    return int(np.where(nan, 0, ulp_distance(expected, actual, form)).max())


def _sample_bounds(pair: Pair) -> _Bounds:
    return _bounds(*pair.sample(), *pair.formats)


def _full_bounds(pair: Pair) -> _Bounds:
    bounds = _Bounds()
    for left, right in pair.pieces():
        bounds &= _bounds(left, right, *pair.formats)
        if bounds.informative and not bounds.admissible:
            break
    return bounds


def _bounds(left: Array, right: Array, source: Format, target: Format) -> _Bounds:
    """Bounds from the elements that are finite on both sides."""
    finite = is_finite(left, source) & is_finite(right, target)
    values = decode(left[finite], source).astype("<f8")
    steps = monotone(right[finite], target)
    used = values != 0
    # Nothing scales 0 into more than the smallest subnormal.
    if (np.abs(steps[~used]) > 1).any():
        return _Bounds(_NONE, _NONE)
    values, steps = values[used], steps[used]
    steps = np.where(values < 0, -steps, steps)
    values = np.abs(values)
    return _Bounds(*(_interval(values, steps, target, ulps) for ulps in (0, 1)))


def _interval(values: Array, steps: Array, form: Format, ulps: int) -> _Interval:
    """Factors for which value * factor can round to within ``ulps`` of the number at each step."""
    if not len(values):
        return _ANY
    with np.errstate(all="ignore"):
        low = (_value(steps - ulps - 1, form) + _value(steps - ulps, form)) / 2 / values
        high = (_value(steps + ulps, form) + _value(steps + ulps + 1, form)) / 2 / values
        # Multiplied, as adding the slack to an infinite bound would give NaN.
        low, high = low * (1 - np.copysign(_WIDEN, low)), high * (1 + np.copysign(_WIDEN, high))
    return _Interval(float(low.max()), float(high.min()))


def _value(steps: Array, form: Format) -> Array:
    """The float64 values of monotone integers; infinity beyond the largest finite one."""
    bits = np.minimum(np.abs(steps), form.infinity).astype(form.bits)
    values: Array = np.copysign(decode(bits, form).astype("<f8"), steps)
    return values


def _candidates(bounds: _Bounds, shape: tuple[int, ...]) -> list[float]:
    """Up to `_TRIES` factors, the likeliest first: those that may be exact, then those within an ulp."""
    chosen: dict[float, None] = {}
    for interval in (bounds.exact, bounds.close):
        if interval.low <= interval.high and isfinite(interval.low) and isfinite(interval.high):
            chosen.update(dict.fromkeys(_likely(interval, shape)))
    usable = (factor for factor in chosen if factor not in (0, 1) and isfinite(factor) and isfinite(1 / factor))
    return list(islice(usable, _TRIES))


def _likely(interval: _Interval, shape: tuple[int, ...]) -> Iterator[float]:
    """A power of two, a root of the width as the types round it, then the plainest numbers and the middle."""
    sign = -1.0 if interval.high < 0 else 1.0
    low, high = sorted((abs(interval.low), abs(interval.high)))
    inside = _Interval(low, high)
    named = [_power_of_two(low), *_roots(shape[-1] if shape else 1)]
    plain = sorted((_shortest_decimal(inside), _shortest_binary(inside)))
    yield from (sign * factor for factor in named if factor in inside)
    yield from (sign * factor for _, factor in plain)
    yield sign * _middle(inside)


def _power_of_two(low: float) -> float:
    """The least power of two that is at least ``low`` (positive)."""
    mantissa, exponent = frexp(low)
    return ldexp(0.5, exponent if mantissa == 0.5 else min(exponent + 1, 1024))


def _roots(width: int) -> list[float]:
    roots = np.array([sqrt(width), 1 / sqrt(width)])
    rounded = [decode(encode(roots, form), form).astype("<f8") for form in (BF16, F16, F32)]
    return [float(root) for group in (roots, *rounded) for root in group]


def _middle(interval: _Interval) -> float:
    return interval.low + (interval.high - interval.low) / 2


def _shortest_decimal(interval: _Interval) -> tuple[float, float]:
    """(digits, the number with the fewest decimal digits near the middle of a positive interval)."""
    middle = _middle(interval)
    for digits in range(1, 17):
        number = float(f"{middle:.{digits - 1}e}")
        if number in interval:
            return digits, number
    return 17, middle


def _shortest_binary(interval: _Interval) -> tuple[float, float]:
    """(bits as decimal digits, the number with the fewest bits near the middle of a positive interval)."""
    mantissa, exponent = frexp(_middle(interval))
    for bits in range(1, 53):
        number = ldexp(round(ldexp(mantissa, bits)), exponent - bits)
        if number in interval:
            return bits * log10(2), number
    return ceil(53 * log10(2)), ldexp(mantissa, exponent)
