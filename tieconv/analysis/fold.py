"""A norm that was folded into the head, unfolded exactly: U = round(E·diag(g)) byte by byte, γ·g without rounding.

Only what is proved is offered: factors g are searched in the intervals that the stored elements leave them, then every
byte of the head is compared with the rounded product. The last norm must be able to hold its weight times g as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tieconv.analysis.cost import one_shape
from tieconv.analysis.final import Final
from tieconv.analysis.simplest import simplest
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Array, Table, spans
from tieconv.checkpoint.plan import NormFold
from tieconv.errors import RefusedError
from tieconv.execute.mean import floats, rounded
from tieconv.text import shown

_PRODUCTS = ("F16", "BF16", "F32")
"""Types of which two elements have an exact product in float64."""

_SLACK = 2.0**-50  # relative; of the quotients that bound a factor


@dataclass(frozen=True, slots=True)
class _Pair:
    embed: Table
    head: Table

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Both tables as float64, some rows at a time."""
        for start, stop in spans(self.embed.rows, self.embed.width):
            yield self.embed.values(start, stop), self.head.values(start, stop)


def unfold(subject: Subject) -> NormFold:
    """The last norm's new values, with which the embedding is the head; proved on every byte of both tables.

    Raises `RefusedError` with the reason where there are no such values. Reads both tables three or four times.
    """
    pair, final = _guarded(subject)
    low, high = _intervals(pair)
    crossed = low > high * (1 + np.copysign(2.0**-22, high))
    if crossed.any():
        column = int(np.argmax(crossed))
        _refuse(subject, f"no factor gives column {column:,} of the head from that of the embedding")
    gains, failed = _proved(pair, final, (low, high))
    if failed.any():
        _refuse(
            subject,
            f"in {int(failed.sum()):,} of {len(failed):,} columns the head is not, byte for byte, the embedding times "
            f"a factor that {shown(final.norm)} could take up exactly",
        )
    values = {final.norm: _stored(subject, final.norm, _weights(final, gains))}
    if final.shift is not None:
        values[final.shift_name] = _stored(subject, final.shift_name, final.shift * gains)
    return NormFold(values, pair.head.record.name, _inexact(pair, gains), pair.head.record.elements)


def _guarded(subject: Subject) -> tuple[_Pair, Final]:
    if subject.head is None:
        _refuse(subject, "there is one table, and no head that a norm could be folded into")
    final, pair = subject.final, _Pair(subject.embed, subject.head)
    kinds = {pair.embed.record.dtype, pair.head.record.dtype}
    if not one_shape(subject):
        _refuse(subject, "the two tables have different numbers of rows")
    if len(kinds) > 1 or not kinds <= set(_PRODUCTS):
        these = " and ".join(sorted(kinds))
        _refuse(subject, f"products are proved for tables of one type of {', '.join(_PRODUCTS)}; these are {these}")
    if final is None or not final.norm:
        _refuse(subject, "no norm with a weight is known to stand before the head of this class")
    for name in filter(None, (final.norm, final.shift_name)):
        _guard_alone(subject, name)
    return pair, final


def _guard_alone(subject: Subject, name: str) -> None:
    tensors = subject.evidence.checkpoint.tensors
    span = tensors[name].range
    for other in tensors.values():
        overlaps = other.range.start < span.end and span.start < other.range.end
        if other.name != name and other.range.file == span.file and overlaps:
            _refuse(subject, f"{shown(other.name)} shares the bytes of {shown(name)}, and would change with it")


def _intervals(pair: _Pair) -> tuple[Array, Array]:
    """(low, high), each (d,): the factors that every element of a column allows, ends included."""
    form = pair.head.form
    low, high = np.full(pair.embed.width, -np.inf), np.full(pair.embed.width, np.inf)
    unit = np.ldexp(1.0, {"F16": -24, "BF16": -133, "F32": -149}[form.name])
    for e, u in pair.blocks():
        half = np.maximum(np.ldexp(1.0, np.frexp(u)[1] - 2 - form.mantissa), unit / 2)
        half[u == 0] = unit / 2
        with np.errstate(all="ignore"):
            ends = np.stack([(u - half) / e, (u + half) / e])
        free = (e == 0) & (u == 0)
        below = np.where(free, -np.inf, np.nan_to_num(ends.min(0), nan=np.inf, posinf=np.inf, neginf=-np.inf))
        above = np.where(free, np.inf, np.nan_to_num(ends.max(0), nan=-np.inf, posinf=np.inf, neginf=-np.inf))
        low, high = np.maximum(low, below.max(0)), np.minimum(high, above.min(0))
    return low, high


def _ends(low: Array, high: Array) -> Iterator[tuple[Array, Array]]:
    """The intervals as they are taken: whole, without their ends, which may be ties that went the other way, and with
    what a product that was rounded to float32 first adds.
    """
    bounds = np.isfinite(low) & np.isfinite(high)
    size = np.where(bounds, np.maximum(np.abs(low), np.abs(high)), 0.0)
    for share in (_SLACK, -4 * _SLACK, 2.0**-23):
        yield low - share * size, high + share * size


def _proved(pair: _Pair, final: Final, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    """(factors, which columns have none), both (d,)."""
    gains, failed = np.ones(pair.embed.width), np.ones(pair.embed.width, bool)
    for low, high in _ends(*ends):
        for candidate in _candidates(final, low, high):
            usable = failed & np.isfinite(candidate)
            if usable.any():
                chosen = np.where(usable, candidate, gains)
                wrong = _differing(pair, chosen) | ~usable
                gains = np.where(failed & ~wrong, chosen, gains)
                failed &= wrong
    return gains, failed


def _candidates(final: Final, low: Array, high: Array) -> Iterator[Array]:
    """Factors within the intervals, (d,), NaN where the norm could not take one up: that of the plainest weight which
    the norm would have, then the plainest factor.
    """
    with np.errstate(all="ignore"):
        ends = np.stack([final.gains * low, final.gains * high]) - final.offset
        whole = simplest(ends.min(0), ends.max(0)) + final.offset
        yield _kept(final, np.where(np.isinf(low) & np.isinf(high), 1.0, whole / final.gains))
    yield _kept(final, simplest(low, high))


def _kept(final: Final, gains: Array) -> Array:
    """The factors of 24 bits at most that norm and shift take up without rounding, NaN elsewhere."""
    with np.errstate(all="ignore"):
        whole = final.gains * gains
        fine = gains.astype("f4") == gains
        for values, kind in _results(final, gains):
            fine &= np.isfinite(values) & (_through(values, kind) == values)
        fine &= (whole.astype("f4") == whole) & (final.gains.astype("f4") == final.gains)
    return np.where(fine, gains, np.nan)


def _results(final: Final, gains: Array) -> Iterator[tuple[Array, str]]:
    yield _weights(final, gains), final.dtype
    if final.shift is not None:
        yield final.shift * gains, final.shift_dtype


def _weights(final: Final, gains: Array) -> Array:
    return final.gains * gains - final.offset


def _through(values: Array, dtype: str) -> Array:
    """The values as they come back from ``dtype``."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return floats(rounded(finite, dtype), dtype)


def _differing(pair: _Pair, gains: Array) -> Array:
    """Which columns (d,) of the head are not the products, bit for bit: rounded once, or to float32 first, as whoever
    multiplies in float32 rounds them.
    """
    once, twice = np.zeros(len(gains), bool), np.zeros(len(gains), bool)
    form = pair.head.form
    for start, stop in spans(pair.embed.rows, pair.embed.width):
        product, bits = pair.embed.values(start, stop) * gains, pair.head.bits(start, stop)
        with np.errstate(over="ignore"):
            singles = product.astype("f4").astype("f8")
        for wrong, values in ((once, product), (twice, singles)):
            made = np.frombuffer(rounded(values, form.name), form.bits).reshape(product.shape)
            wrong |= (made != bits).any(0) | ~np.isfinite(product).all(0)
    return once & twice


def _inexact(pair: _Pair, gains: Array) -> int:
    """Elements of the head that are a rounded product."""
    return sum(int(np.count_nonzero(e * gains != u)) for e, u in pair.blocks())


def _stored(subject: Subject, name: str, values: Array) -> bytes:
    return rounded(values, subject.evidence.checkpoint.tensors[name].dtype)


def _refuse(subject: Subject, why: str) -> NoReturn:
    raise RefusedError(
        f"{shown(subject.evidence.checkpoint.source)}: {why}",
        "see what the tables are to each other: tieconv analyze",
        "retie.fold",
    )
