"""Move the factors of a folded head back into the norm, exactly: U = round(E·diag(g)), and γ·g without rounding.

The stored elements give an interval for each factor g. The search picks factors inside the intervals. Then every byte
of the head is compared with the rounded product. The last norm must hold its weight times g without rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tieconv.analysis.relation import Related, simplest
from tieconv.analysis.retie_cost import one_shape
from tieconv.analysis.subject import Final, Subject
from tieconv.analysis.tables import Array, Table, spans
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record, stated_fields
from tieconv.checkpoint.write_plan import NormFold
from tieconv.errors import RefusedError
from tieconv.execute.arithmetic import floats, rounded
from tieconv.text import Hint, call, shown

_PRODUCTS = ("F16", "BF16", "F32")
"""Types of which two elements have an exact product in float64."""


class _NoFoldError(Exception):
    """No norm can hold the factors. The text is a clause that says why."""


def unfold(subject: Subject) -> NormFold:
    """Return the last norm's new values that let the embedding replace the head, proved on every byte of both tables.

    Raises `RefusedError` with the reason if there are no such values. Reads both tables three or four times.
    """
    try:
        return _fold(subject)
    except _NoFoldError as why:
        hint, source = Hint("see how the tables relate: ", call("analyze")), shown(subject.evidence.checkpoint.source)
        raise RefusedError(str(why), hint, "retie.fold", source=source) from why


def _fold(subject: Subject) -> NormFold:
    if subject.head is None:
        raise _NoFoldError("the model stores one table, so no norm is folded into a head")
    final, pair = subject.final, Pair(subject.embed, subject.head)
    kinds = {pair.embed.record.dtype, pair.head.record.dtype}
    if not one_shape(subject):
        raise _NoFoldError("the two tables have different numbers of rows")
    if len(kinds) > 1 or not kinds <= set(_PRODUCTS):
        these = " and ".join(sorted(kinds))
        problem = f"tieconv compares products only for two {', '.join(_PRODUCTS)} tables of one type; these are {these}"
        raise _NoFoldError(problem)
    if final is None or not final.norm:
        why = subject.withheld or "the last norm has no weight"
        raise _NoFoldError(f"tieconv knows no norm that can hold the factors: {why}")
    for name in filter(None, (final.norm, final.shift_name)):
        tensors = subject.evidence.checkpoint.tensors
        span = tensors[name].range
        for neighbour in tensors.values():
            overlaps = neighbour.range.start < span.end and span.start < neighbour.range.end
            if neighbour.name != name and neighbour.range.file == span.file and overlaps:
                problem = f"{shown(neighbour.name)} shares the bytes of {shown(name)} and would change with it"
                raise _NoFoldError(problem)
    low, high = intervals(pair)
    crossed = low > high * (1 + np.copysign(2.0**-22, high))
    if crossed.any():
        column = int(np.argmax(crossed))
        raise _NoFoldError(f"no factor maps column {column:,} of the embedding to that of the head")
    gains, failed = _proved(pair, final, (low, high))
    if failed.any():
        raise _NoFoldError(
            f"{int(failed.sum()):,} of {len(failed):,} columns of the head are not the embedding times a factor that "
            f"{shown(final.norm)} can hold exactly"
        )
    values = {final.norm: _stored(subject, final.norm, weights(final, gains))}
    if final.shift is not None:
        values[final.shift_name] = _stored(subject, final.shift_name, final.shift * gains)
    inexact = sum(int(np.count_nonzero(e * gains != u)) for e, u in pair.blocks())
    return NormFold(values, pair.head.record.name, inexact, pair.head.record.elements)


def _proved(pair: Pair, final: Final, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the factors, and which columns have none, both (d,)."""
    gains, failed = np.ones(pair.embed.width), np.ones(pair.embed.width, bool)
    for low, high in ends_of(*ends):
        for candidate in candidates(final, low, high):
            usable = failed & np.isfinite(candidate)
            if usable.any():
                chosen = np.where(usable, candidate, gains)
                # Which columns (d,) of the head differ in a bit from the products. The products
                # are rounded once, or first to float32 as a float32 multiplication does.
                once, twice = np.zeros(len(chosen), bool), np.zeros(len(chosen), bool)
                form = pair.head.form
                for start, stop in spans(pair.embed.rows, pair.embed.width):
                    product, bits = pair.embed.values(start, stop) * chosen, pair.head.bits(start, stop)
                    with np.errstate(over="ignore"):
                        singles = product.astype("f4").astype("f8")
                    for wrong, values in ((once, product), (twice, singles)):
                        made = np.frombuffer(rounded(values, form.name), form.bits).reshape(product.shape)
                        wrong |= (made != bits).any(0) | ~np.isfinite(product).all(0)
                wrong = (once & twice) | ~usable
                gains = np.where(failed & ~wrong, chosen, gains)
                failed &= wrong
    return gains, failed


def _stored(subject: Subject, name: str, values: Array) -> bytes:
    return rounded(values, subject.evidence.checkpoint.tensors[name].dtype)


# Find factors between the columns of two tables: intervals from stored elements, and factors that a norm can hold.

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
            finite = np.where(np.isfinite(values), values, 0.0)
            fine &= np.isfinite(values) & (floats(rounded(finite, kind), kind) == values)
        fine &= (whole.astype("f4") == whole) & (final.gains.astype("f4") == final.gains)
    return np.where(fine, gains, np.nan)


def _results(final: Final, gains: Array) -> Iterator[tuple[Array, str]]:
    yield weights(final, gains), final.dtype
    if final.shift is not None:
        yield final.shift * gains, final.shift_dtype


def weights(final: Final, gains: Array) -> Array:
    """Return the weights that the norm stores with the factors, (d,)."""
    return final.gains * gains - final.offset


# The last norm with the factors of a scaled head: exact, or fitted for the user to write.


@record
class FoldedNorm:
    """The last norm with the factors of a scaled head.

    If it is exact, `retie --fold-norm` writes it. Otherwise the user must write the fitted values, and ``reason`` says
    why no command does. ``values`` are the norm's new weights: (d,), in the norm's own convention (1 + weight for
    Gemma).
    """

    exact: bool
    tensor: str
    values: list[float]
    rounded_elements: int | None = None
    reason: str | None = None
    bias_tensor: str | None = None
    bias_values: list[float] | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``fold``."""
        return stated_fields(self)


def folded_norm(subject: Subject, related: Related) -> FoldedNorm | None:
    """Return the last norm with the factors of the columns, or ``None`` if it cannot hold them.

    A shift that all rows share is dropped, because the softmax does not see it. Under a soft cap the result is
    ``None``.
    """
    fit, final = related.fit, subject.final
    if related.kind not in (Kinship.SCALAR, Kinship.DIAGONAL) or fit is None or not one_shape(subject):
        return None
    if subject.flip.third or final is None or not final.norm or (final.capped and np.any(fit.shift)):
        return None
    fold, reason, bias = None, None, None
    try:
        fold = _fold(subject)
    except _NoFoldError as why:
        reason = str(why)
    values = floats(fold.values[final.norm], final.dtype) if fold else weights(final, fit.gains)
    if final.shift is not None:  # γ ⊙ x̂ + β: the factor is on both
        shift = floats(fold.values[final.shift_name], final.shift_dtype) if fold else final.shift * fit.gains
        bias = shift.tolist()
    written = fold.rounded if fold else None
    return FoldedNorm(bool(fold), final.norm, values.tolist(), written, reason, final.shift_name or None, bias)
