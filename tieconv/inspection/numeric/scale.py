"""Whether one float tensor is a multiple of another one. Imports numpy: import it lazily.

Each pair of finite values bounds the factors that could have made one of the other. The samples'
bounds refute most pairs and suggest a factor; only a pass over every element with that factor proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import ceil, frexp, inf, isfinite, ldexp, log10, sqrt

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import (
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
    magnitude,
    monotone,
    ulp_distance,
)

_TRIES = 4
"""Factors of each side that are tried with a pass over every element."""

_WIDEN = 2 * float(np.finfo(np.float64).eps)
"""Relative slack for the roundings of the bounds' own arithmetic."""


@record
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


@record
class _Interval:
    low: float = -inf
    high: float = inf

    def __and__(self, other: _Interval) -> _Interval:
        return _Interval(max(self.low, other.low), min(self.high, other.high))

    @property
    def possible(self) -> bool:
        return self.low <= self.high

    def __contains__(self, factor: float) -> bool:
        return self.low <= factor <= self.high


_ANY = _Interval()
_NONE = _Interval(inf, -inf)


@record
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
        return self.informative and self.close.possible and 0 not in self.close and 1 not in self.close


def scaling(pair: Pair) -> Scaling | None:
    """The factor that makes one side of the pair of the other, as ``Scaling.pair`` orients them.

    Exact claims come before those within one ulp, ``left`` * factor before ``right`` * factor.
    ``None`` where no factor was proved, and where 1 would do as well. Raises what the reader raises.
    """
    sides = [(side, _first_bounds(side)) for side in (pair, pair.reversed())]
    if any(bounds.informative and 1 in bounds.close for _, bounds in sides):
        return None
    close = None
    for side, bounds in sides:
        close = _fit(side, bounds, close)
        if close and close.exact:
            break
    return close


def _first_bounds(pair: Pair) -> _Bounds:
    """Bounds from the sample or, where it holds zeros alone, from the first piece that tells something."""
    bounds = _bounds(*pair.sample(), *pair.formats)
    if bounds.informative:
        return bounds
    every = (_bounds(left, right, *pair.formats) for left, right in pair.pieces())
    return next((candidate for candidate in every if candidate.informative), _Bounds())


def _fit(pair: Pair, bounds: _Bounds, close: Scaling | None) -> Scaling | None:
    """An exact proof, else ``close``, else the first proof within one ulp.

    A pass refutes a factor by elements that bound the next one. The first that fails on one side of the truth brings
    the bound of every element there, the first on the other side the other one: few passes decide any pair.
    """
    tried: set[float] = set()
    for _ in range(_TRIES):
        wanted = replace(bounds, close=bounds.exact) if close else bounds
        factor = next((candidate for candidate in _candidates(wanted, pair.left.shape) if candidate not in tried), None)
        if factor is None or not bounds.admissible:
            break
        tried.add(factor)
        claim, bounds = _prove(pair, factor, bounds, exact_only=close is not None)
        if claim and claim.exact:
            return claim
        close = close or claim
    return close


def _prove(pair: Pair, factor: float, bounds: _Bounds, *, exact_only: bool) -> tuple[Scaling | None, _Bounds]:
    """Compare every element with the rounded product, and tighten ``bounds`` by those that differ.

    No claim where one is off by more than one ulp. The pass ends early where no other factor can do better.
    """
    times = _Multiplier(pair.formats, factor)
    claim: Scaling | None = Scaling(pair, factor, 0, True)
    for left, right in pair.pieces():
        expected = times(left)
        if np.array_equal(expected, right):
            continue
        off = _misses(expected, right, pair.formats[1])
        if off is None:
            return None, _Bounds(_NONE, _NONE)
        most = int(off.max())
        claim = replace(claim, max_ulp=max(claim.max_ulp, most), exact=False) if claim and most <= 1 else None
        bounds &= _refutation(expected, left, right, off, bounds, pair.formats)
        if not bounds.admissible or (exact_only and not bounds.exact.possible):
            return None, bounds
    return claim, bounds


def _refutation(
    expected: Array, left: Array, right: Array, off: Array, bounds: _Bounds, formats: tuple[Format, Format]
) -> _Bounds:
    """What the elements that a factor missed say about other factors."""
    if bounds.exact.possible and (off[expected != right] == 0).any():
        bounds = replace(bounds, exact=_NONE)  # the sign of a zero, a NaN's bits: the same with any factor
    # What is off by one says nothing new once no factor is exact.
    telling = off > (0 if bounds.exact.possible else 1)
    return bounds & _bounds(left[telling], right[telling], *formats)


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


def _misses(expected: Array, actual: Array, form: Format) -> Array | None:
    """The distances in ulps, two NaNs being equal; ``None`` where a NaN faces a number."""
    nan = is_nan(actual, form)
    if (nan != is_nan(expected, form)).any():
        return None
    return np.where(nan, 0, ulp_distance(expected, actual, form))


def _bounds(left: Array, right: Array, source: Format, target: Format) -> _Bounds:
    """Bounds from the elements that are finite on both sides."""
    sizes = magnitude(left, source)
    finite = is_finite(right, target)
    # Nothing scales 0 into more than the smallest subnormal, or exactly into that.
    most = int(magnitude(right, target).max(initial=0, where=finite & (sizes == 0)))
    if most > 1:
        return _Bounds(_NONE, _NONE)
    exact = _NONE if most else _ANY
    used = finite & (sizes != 0) & (sizes < source.infinity)
    if not used.any():
        return _Bounds(exact)
    values = decode(left[used], source).astype("<f8")
    steps = monotone(right[used], target)
    steps = np.where(values < 0, -steps, steps)
    values = np.abs(values)
    bounds = _Bounds(*(_interval(values, steps, target, ulps) for ulps in (0, 1)))
    return bounds & _Bounds(exact)


def _interval(values: Array, steps: Array, form: Format, ulps: int) -> _Interval:
    """Factors for which value * factor can round to within ``ulps`` of the number at each step."""
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
        if interval.possible and isfinite(interval.low) and isfinite(interval.high):
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
