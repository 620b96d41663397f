"""Bound the factor between two arrays, from elements that are finite on both sides."""

from __future__ import annotations

from math import inf

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import (
    Array,
    Format,
    decode,
    is_finite,
    magnitude,
    monotone,
)

_WIDEN = 2 * float(np.finfo(np.float64).eps)
"""Relative slack for the roundings of the bounds' own arithmetic."""


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
    def admissible(self) -> bool:
        """Whether a factor may exist that keeps something (not 0) and changes something (not 1)."""
        return self.informative and self.close.possible and 0 not in self.close and 1 not in self.close


def factor_bounds(left: Array, right: Array, source: Format, target: Format) -> Bounds:
    """Return the bounds from the elements that are finite on both sides."""
    sizes = magnitude(left, source)
    finite = is_finite(right, target)
    # No factor scales 0 to more than the smallest subnormal, or exactly to that.
    most = int(magnitude(right, target).max(initial=0, where=finite & (sizes == 0)))
    if most > 1:
        return Bounds(NONE, NONE)
    exact = NONE if most else ANY
    used = finite & (sizes != 0) & (sizes < source.infinity)
    if not used.any():
        return Bounds(exact)
    values = decode(left[used], source).astype("<f8")
    steps = monotone(right[used], target)
    steps = np.where(values < 0, -steps, steps)
    values = np.abs(values)
    bounds = Bounds(*(_interval(values, steps, target, ulps) for ulps in (0, 1)))
    return bounds & Bounds(exact)


def _interval(values: Array, steps: Array, form: Format, ulps: int) -> Interval:
    """Return the factors for which value * factor can round to within ``ulps`` of the number at each step."""
    with np.errstate(all="ignore"):
        low = (_value(steps - ulps - 1, form) + _value(steps - ulps, form)) / 2 / values
        high = (_value(steps + ulps, form) + _value(steps + ulps + 1, form)) / 2 / values
        # Multiply, because adding the slack to an infinite bound would give NaN.
        low, high = low * (1 - np.copysign(_WIDEN, low)), high * (1 + np.copysign(_WIDEN, high))
    return Interval(float(low.max()), float(high.min()))


def _value(steps: Array, form: Format) -> Array:
    """Return the float64 values of monotone integers; infinity beyond the largest finite one."""
    bits = np.minimum(np.abs(steps), form.infinity).astype(form.bits)
    values: Array = np.copysign(decode(bits, form).astype("<f8"), steps)
    return values
