"""Decide whether one float tensor is a multiple of another one. Imports numpy: import it lazily.

Each pair of finite values bounds the possible factors. The samples' bounds refute most pairs and suggest a factor. Only
a pass over every element with that factor proves it.
"""

from __future__ import annotations

from dataclasses import replace
from math import frexp

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import (
    Array,
    Format,
    Pair,
    decode,
    encode,
    is_nan,
    ulp_distance,
)
from tieconv.inspection.numeric.factor_bounds import NONE, Bounds, factor_bounds
from tieconv.inspection.numeric.likely_factors import TRIES, likely_factors


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


def scaling(pair: Pair) -> Scaling | None:
    """Return the factor between the sides of the pair, with ``Scaling.pair`` as its orientation.

    Exact claims precede those within one ulp, ``left`` * factor precedes ``right`` * factor. ``None`` if no factor was
    proved, or if 1 fits too. Raises what the reader raises.
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


def _first_bounds(pair: Pair) -> Bounds:
    """Return bounds from the sample or, if it holds only zeros, from the first piece that bounds anything."""
    bounds = factor_bounds(*pair.sample(), *pair.formats)
    if bounds.informative:
        return bounds
    every = (factor_bounds(left, right, *pair.formats) for left, right in pair.pieces())
    return next((candidate for candidate in every if candidate.informative), Bounds())


def _fit(pair: Pair, bounds: Bounds, close: Scaling | None) -> Scaling | None:
    """Return an exact proof, else ``close``, else the first proof within one ulp.

    A pass refutes a factor by elements that bound the next one. The first factor that fails on one side of the truth
    brings the bound of every element to that side. The first on the other side does so there: few passes decide any
    pair.
    """
    tried: set[float] = set()
    for _ in range(TRIES):
        wanted = replace(bounds, close=bounds.exact) if close else bounds
        factor = next(
            (candidate for candidate in likely_factors(wanted, pair.left.shape) if candidate not in tried), None
        )
        if factor is None or not bounds.admissible:
            break
        tried.add(factor)
        claim, bounds = _prove(pair, factor, bounds, exact_only=close is not None)
        if claim and claim.exact:
            return claim
        close = close or claim
    return close


def _prove(pair: Pair, factor: float, bounds: Bounds, *, exact_only: bool) -> tuple[Scaling | None, Bounds]:
    """Compare every element with the rounded product, and tighten ``bounds`` by those that differ.

    No claim if one is off by more than one ulp. The pass ends early if no other factor can do better.
    """
    times = _Multiplier(pair.formats, factor)
    claim: Scaling | None = Scaling(pair, factor, 0, True)
    for left, right in pair.pieces():
        expected = times(left)
        if np.array_equal(expected, right):
            continue
        off = _misses(expected, right, pair.formats[1])
        if off is None:
            return None, Bounds(NONE, NONE)
        most = int(off.max())
        claim = replace(claim, max_ulp=max(claim.max_ulp, most), exact=False) if claim and most <= 1 else None
        bounds &= _refutation(expected, left, right, off, bounds, pair.formats)
        if not bounds.admissible or (exact_only and not bounds.exact.possible):
            return None, bounds
    return claim, bounds


def _refutation(
    expected: Array, left: Array, right: Array, off: Array, bounds: Bounds, formats: tuple[Format, Format]
) -> Bounds:
    """Return what the elements that a factor missed imply for other factors."""
    if bounds.exact.possible and (off[expected != right] == 0).any():
        bounds = replace(bounds, exact=NONE)  # the sign of a zero or a NaN's bits: the same with any factor
    # An element off by one ulp adds nothing once no factor is exact.
    telling = off > (0 if bounds.exact.possible else 1)
    return bounds & factor_bounds(left[telling], right[telling], *formats)


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
    """Return the distances in ulps, two NaNs counting as equal; ``None`` if only one side is a NaN."""
    nan = is_nan(actual, form)
    if (nan != is_nan(expected, form)).any():
        return None
    return np.where(nan, 0, ulp_distance(expected, actual, form))
