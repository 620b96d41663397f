"""Find the simplest number of an interval: the one with the fewest binary digits."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array

DIGITS = 24
"""Significant binary digits of a float32."""


def simplest(low: Array, high: Array) -> Array:
    """Return the number with the fewest significant binary digits, at most `DIGITS`, of each interval [low, high].

    An unbounded interval gives 1, an interval with 0 gives 0, and one without such a number gives NaN.
    """
    negative = high < 0
    small, large = np.where(negative, -high, low), np.where(negative, -low, high)
    numbers = np.full(len(low), np.nan)
    open_ = np.isnan(numbers) & np.isfinite(small) & np.isfinite(large) & (small > 0) & (small <= large)
    exponents = np.frexp(np.where(open_, large, 1.0))[1]
    for digits in range(1, DIGITS + 1):
        step = np.ldexp(1.0, exponents - digits)
        candidate = np.floor(np.where(open_, large, 1.0) / step) * step
        hit = open_ & np.isnan(numbers) & (candidate >= small)
        numbers = np.where(hit, candidate, numbers)
    numbers = np.where(negative, -numbers, numbers)
    numbers = np.where((low <= 0) & (high >= 0), 0.0, numbers)
    return np.where(np.isinf(low) & np.isinf(high), 1.0, numbers)
