"""Find the likeliest factors within an interval: powers of two, roots of the width, and numbers with few digits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import ceil, frexp, isfinite, ldexp, log10, sqrt

import numpy as np

from tieconv.inspection.numeric.bits import (
    BF16,
    F16,
    F32,
    decode,
    encode,
)
from tieconv.inspection.numeric.factor_bounds import Bounds, Interval

TRIES = 4
"""Factors of each side that a pass over every element tries."""


def likely_factors(bounds: Bounds, shape: tuple[int, ...]) -> list[float]:
    """Return up to `TRIES` factors, the likeliest first: those that may be exact, then those within an ulp."""
    chosen: dict[float, None] = {}
    for interval in (bounds.exact, bounds.close):
        if interval.possible and isfinite(interval.low) and isfinite(interval.high):
            chosen.update(dict.fromkeys(_likely(interval, shape)))
    usable = (factor for factor in chosen if factor not in (0, 1) and isfinite(factor) and isfinite(1 / factor))
    return list(islice(usable, TRIES))


def _likely(interval: Interval, shape: tuple[int, ...]) -> Iterator[float]:
    """Yield a power of two, a rounded root of the width, the shortest numbers and the middle."""
    sign = -1.0 if interval.high < 0 else 1.0
    low, high = sorted((abs(interval.low), abs(interval.high)))
    inside = Interval(low, high)
    named = [_power_of_two(low), *_roots(shape[-1] if shape else 1)]
    plain = sorted((_shortest_decimal(inside), _shortest_binary(inside)))
    yield from (sign * factor for factor in named if factor in inside)
    yield from (sign * factor for _, factor in plain)
    yield sign * _middle(inside)


def _power_of_two(low: float) -> float:
    """Return the least power of two that is at least ``low`` (positive)."""
    mantissa, exponent = frexp(low)
    return ldexp(0.5, exponent if mantissa == 0.5 else min(exponent + 1, 1024))


def _roots(width: int) -> list[float]:
    roots = np.array([sqrt(width), 1 / sqrt(width)])
    rounded = [decode(encode(roots, form), form).astype("<f8") for form in (BF16, F16, F32)]
    return [float(root) for group in (roots, *rounded) for root in group]


def _middle(interval: Interval) -> float:
    return interval.low + (interval.high - interval.low) / 2


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
