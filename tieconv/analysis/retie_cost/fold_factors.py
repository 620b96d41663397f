"""Find factors between the columns of two tables: intervals from stored elements, and factors that a norm can hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tieconv.analysis.model.last_norm import Final
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.simplest import simplest
from tieconv.checkpoint.value_type import record
from tieconv.execute.contents.mean import floats, rounded

_SLACK = 2.0**-50  # relative error of the quotients that bound a factor


@record
class Pair:
    """Two tables of one shape and type."""

    embed: Table
    head: Table

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield both tables as float64, in blocks of rows."""
        for start, stop in spans(self.embed.rows, self.embed.width):
            yield self.embed.values(start, stop), self.head.values(start, stop)


def intervals(pair: Pair) -> tuple[Array, Array]:
    """Return (low, high), each (d,): the factors that every element of a column allows, ends included."""
    form = pair.head.form
    low, high = np.full(pair.embed.width, -np.inf), np.full(pair.embed.width, np.inf)
    unit = np.ldexp(1.0, {"F16": -24, "BF16": -133, "F32": -149}[form.name])
    for e, u in pair.blocks():
        half = np.maximum(np.ldexp(1.0, np.frexp(u)[1] - 2 - form.mantissa), unit / 2)
        half[u == 0] = unit / 2
        # Below a power of two the next value is half as far away as above it.
        inner = np.where(np.abs(np.frexp(u)[0]) == 0.5, np.maximum(half / 2, unit / 2), half)
        with np.errstate(all="ignore"):
            ends = np.stack([(u - np.copysign(inner, u)) / e, (u + np.copysign(half, u)) / e])
        free = (e == 0) & (u == 0)
        below = np.where(free, -np.inf, np.nan_to_num(ends.min(0), nan=np.inf, posinf=np.inf, neginf=-np.inf))
        above = np.where(free, np.inf, np.nan_to_num(ends.max(0), nan=-np.inf, posinf=np.inf, neginf=-np.inf))
        low, high = np.maximum(low, below.max(0)), np.minimum(high, above.min(0))
    return low, high


def ends_of(low: Array, high: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the intervals to search: whole, without their ends, and widened.

    An end may be a tie that was rounded the other way. The widened interval allows products first rounded to float32.
    """
    bounds = np.isfinite(low) & np.isfinite(high)
    size = np.where(bounds, np.maximum(np.abs(low), np.abs(high)), 0.0)
    for share in (_SLACK, -4 * _SLACK, 2.0**-23):
        yield low - share * size, high + share * size


def candidates(final: Final, low: Array, high: Array) -> Iterator[Array]:
    """Yield factors in the intervals, (d,), with NaN if the norm cannot hold one.

    The first gives the norm the weight with the fewest binary digits. The second has the fewest digits itself.
    """
    with np.errstate(all="ignore"):
        ends = np.stack([final.gains * low, final.gains * high]) - final.offset
        whole = simplest(ends.min(0), ends.max(0)) + final.offset
        yield _representable(final, np.where(np.isinf(low) & np.isinf(high), 1.0, whole / final.gains))
    yield _representable(final, simplest(low, high))


def _representable(final: Final, gains: Array) -> Array:
    """Return the factors of at most 24 bits that norm and shift can hold without rounding, NaN for the others."""
    with np.errstate(all="ignore"):
        whole = final.gains * gains
        fine = gains.astype("f4") == gains
        for values, kind in _results(final, gains):
            fine &= np.isfinite(values) & (_through(values, kind) == values)
        fine &= (whole.astype("f4") == whole) & (final.gains.astype("f4") == final.gains)
    return np.where(fine, gains, np.nan)


def _results(final: Final, gains: Array) -> Iterator[tuple[Array, str]]:
    yield weights(final, gains), final.dtype
    if final.shift is not None:
        yield final.shift * gains, final.shift_dtype


def weights(final: Final, gains: Array) -> Array:
    """Return the weights that the norm stores with the factors, (d,)."""
    return final.gains * gains - final.offset


def _through(values: Array, dtype: str) -> Array:
    """Return the values after a round trip through ``dtype``."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return floats(rounded(finite, dtype), dtype)
