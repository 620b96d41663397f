"""Move the factors of a folded head back into the norm, exactly: U = round(E·diag(g)), and γ·g without rounding.

The stored elements give an interval for each factor g. The search picks factors inside the intervals. Then every byte
of the head is compared with the rounded product. The last norm must hold its weight times g without rounding.
"""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.last_norm import Final
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array, spans
from tieconv.analysis.retie_cost.cost import one_shape
from tieconv.analysis.retie_cost.fold_factors import Pair, candidates, ends_of, intervals, weights
from tieconv.checkpoint.write_plan.plan import NormFold
from tieconv.errors import RefusedError
from tieconv.execute.contents.mean import rounded
from tieconv.text import shown

_PRODUCTS = ("F16", "BF16", "F32")
"""Types of which two elements have an exact product in float64."""


class _NoFoldError(Exception):
    """No norm can hold the factors. The text is a clause that says why."""


def unfold(subject: Subject) -> NormFold:
    """Return the fold of `fold_or_reason`. Raises `RefusedError` with the reason if there is no fold."""
    fold = fold_or_reason(subject)
    if isinstance(fold, NormFold):
        return fold
    source = shown(subject.evidence.checkpoint.source)
    raise RefusedError(fold, "see how the tables relate: tieconv analyze", "retie.fold", source=source)


def fold_or_reason(subject: Subject) -> NormFold | str:
    """Return the last norm's new values that let the embedding replace the head, proved on every byte of both tables.

    Returns the reason if there are no such values. Reads both tables three or four times.
    """
    try:
        return _fold(subject)
    except _NoFoldError as why:
        return str(why)


def _fold(subject: Subject) -> NormFold:
    pair, final = _guarded(subject)
    low, high = intervals(pair)
    crossed = low > high * (1 + np.copysign(2.0**-22, high))
    if crossed.any():
        column = int(np.argmax(crossed))
        raise _NoFoldError(f"no factor maps column {column:,} of the embedding to that of the head")
    gains, failed = _proved(pair, final, (low, high))
    if failed.any():
        raise _NoFoldError(
            f"{int(failed.sum()):,} of {len(failed):,} columns of the head are not the embedding times a factor that "
            f"{shown(final.norm)} can hold exactly",
        )
    values = {final.norm: _stored(subject, final.norm, weights(final, gains))}
    if final.shift is not None:
        values[final.shift_name] = _stored(subject, final.shift_name, final.shift * gains)
    return NormFold(values, pair.head.record.name, _inexact(pair, gains), pair.head.record.elements)


def _guarded(subject: Subject) -> tuple[Pair, Final]:
    if subject.head is None:
        raise _NoFoldError("the model stores one table, so no norm is folded into a head")
    final, pair = subject.final, Pair(subject.embed, subject.head)
    kinds = {pair.embed.record.dtype, pair.head.record.dtype}
    if not one_shape(subject):
        raise _NoFoldError("the two tables have different numbers of rows")
    if len(kinds) > 1 or not kinds <= set(_PRODUCTS):
        these = " and ".join(sorted(kinds))
        raise _NoFoldError(
            f"tieconv compares products only for two {', '.join(_PRODUCTS)} tables of one type; these are {these}"
        )
    if final is None or not final.norm:
        why = subject.withheld or "the last norm has no weight"
        raise _NoFoldError(f"tieconv knows no norm that can hold the factors: {why}")
    for name in filter(None, (final.norm, final.shift_name)):
        _guard_alone(subject, name)
    return pair, final


def _guard_alone(subject: Subject, name: str) -> None:
    tensors = subject.evidence.checkpoint.tensors
    span = tensors[name].range
    for neighbour in tensors.values():
        overlaps = neighbour.range.start < span.end and span.start < neighbour.range.end
        if neighbour.name != name and neighbour.range.file == span.file and overlaps:
            raise _NoFoldError(f"{shown(neighbour.name)} shares the bytes of {shown(name)} and would change with it")


def _proved(pair: Pair, final: Final, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the factors, and which columns have none, both (d,)."""
    gains, failed = np.ones(pair.embed.width), np.ones(pair.embed.width, bool)
    for low, high in ends_of(*ends):
        for candidate in candidates(final, low, high):
            usable = failed & np.isfinite(candidate)
            if usable.any():
                chosen = np.where(usable, candidate, gains)
                wrong = _differing(pair, chosen) | ~usable
                gains = np.where(failed & ~wrong, chosen, gains)
                failed &= wrong
    return gains, failed


def _differing(pair: Pair, gains: Array) -> Array:
    """Return which columns (d,) of the head differ in a bit from the products.

    The products are rounded once, or first to float32 as a float32 multiplication does.
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


def _inexact(pair: Pair, gains: Array) -> int:
    """Count the elements of the head that are a rounded product."""
    return sum(int(np.count_nonzero(e * gains != u)) for e, u in pair.blocks())


def _stored(subject: Subject, name: str, values: Array) -> bytes:
    return rounded(values, subject.evidence.checkpoint.tensors[name].dtype)
