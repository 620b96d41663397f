"""The result of a comparison in words, the same in every report, finding and refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.checkpoint.relation import Absent, Aliased, Canonical, proved
from tieconv.checkpoint.tie_group import Member
from tieconv.text import count, shown

_MOST_ULP = 1_000
"""ulp that the text of a difference states."""
_RANGES = 4
"""Ranges of rows that a phrase lists; with more ranges it only counts the rows."""


def difference(member: Member, noun: str = "rows") -> str:
    """Return how a member differs from its group's reference, such as ``in row 7 of 8, by at most 0.5``."""
    match member.relation:
        case proved.OtherShape(shape=shape, canonical_shape=canonical):
            return f"the shapes are {list(shape)} and {list(canonical)}"
        case proved.Transposed():
            return "it is the transpose"
        case proved.Cast(lossless=True, nan=nan):
            return f"it has the same values in another dtype{', with a NaN' if nan else ''}"
        case proved.Cast(exact=exact):
            return f"equal after a cast, {shown(exact)} holds the full precision"
        case proved.Scaled(factor=factor):
            return f"it is {factor} times as large"
        case proved.Near(figures=figures) | proved.Different(figures=figures):
            return "only in the sign of zeros" if figures.sign_of_zero_only else _rows(figures, noun)
        case proved.OtherBytes(reason=reason) | proved.Unread(reason=reason):
            return shown(reason) or "in their bytes"
        case Canonical() | Absent() | Aliased() | proved.Identical() | proved.Empty() | proved.OtherSample():
            return "in their bytes"
        case _:
            assert_never(member.relation)


def difference_clause(member: Member) -> str:
    """Return `difference` as a full clause, such as ``they differ in row 7 of 8``."""
    phrase = difference(member)
    return f"they differ {phrase}" if phrase.startswith(("in ", "only in ")) else phrase


def _rows(figures: proved.RowFigures, noun: str) -> str:
    differing, rows, ranges = figures.rows_differing, figures.rows, figures.row_ranges
    where = f"in {differing:,} of {rows:,} {noun}"
    if 0 < differing < rows and 0 < len(ranges) <= _RANGES:
        word = noun if differing > 1 else noun.removesuffix("s")
        spans = (f"{start}–{end - 1}" if end - start > 1 else str(start) for start, end in ranges)
        where = f"in {word} {', '.join(spans)} of {rows:,}"
    largest = figures.max_abs
    return where if largest is None else f"{where}, by at most {largest:.3g}"


def figures(relation: proved.Relation) -> str:
    """Return what was proved of a tensor that is not the canonical one; empty if the state needs no figures."""
    match relation:
        case Canonical() | Absent() | Aliased():
            return ""
        case proved.Identical():
            compared = "the files have the same hash" if relation.by else "every byte compared"
            return f"{compared}, contains NaN" if relation.nan and not relation.by else compared
        case proved.Transposed():
            return "every element compared"
        case proved.Cast(lossless=True):
            return "lossless: the same values in another dtype"
        case proved.Cast(exact=exact):
            return f"{shown(exact)} holds the full precision"
        case proved.Scaled(factor=factor):
            precision = "exactly" if relation.exact else f"within {relation.max_ulp} ulp"
            return f"{precision} {factor} times the canonical tensor"
        case proved.OtherShape(shape=shape, canonical_shape=canonical):
            return f"the shapes are {list(shape)} and {list(canonical)}"
        case proved.Near() | proved.Different() | proved.Empty() | proved.OtherBytes() | proved.OtherSample():
            return measured(relation)
        case proved.Unread(reason=reason):
            return shown(reason)
        case _:
            assert_never(relation)


def measured(relation: proved.Relation) -> str:
    """Return the figures of a difference for a table: rows, ulp, the largest difference; without figures, the reason.

    Distinct tensors get the cosine instead of the ulp, which counts to billions across a zero.
    """
    match relation:
        case proved.Near(figures=figures) | proved.Different(figures=figures) if figures.sign_of_zero_only:
            return "only the sign of zeros differs"
        case proved.Near(figures=figures):
            # Across a zero it counts to billions, which says nothing.
            ulp = (f"max {figures.max_ulp:,} ulp",) if (figures.max_ulp or _MOST_ULP) < _MOST_ULP else ()
            return ", ".join(_measures(figures, *ulp))
        case proved.Different(figures=figures, cosine=cosine):
            return ", ".join(_measures(figures, *(() if cosine is None else (f"cosine {cosine:.3g}",))))
        case proved.OtherSample(ranges_differing=ranges):
            return f"its bytes {', '.join(f'{start:,} to {end:,}' for start, end in ranges)} differ"
        case proved.OtherBytes(reason=reason) | proved.Unread(reason=reason):
            return shown(reason) or "its bytes differ"
        case proved.OtherShape() | proved.Empty() | proved.Scaled() | proved.Cast() | proved.Transposed():
            return "its bytes differ"
        case Canonical() | Absent() | Aliased() | proved.Identical():
            return "its bytes differ"
        case _:
            assert_never(relation)


def _measures(figures: proved.RowFigures, *similarity: str) -> Iterator[str]:
    yield f"{figures.rows_differing:,} of {figures.rows:,} rows differ"
    yield from similarity
    if figures.max_abs is not None:
        yield f"max |difference| {figures.max_abs:.4g}"
    if figures.nan_rows:
        yield f"NaN in {count(figures.nan_rows, 'row')}"
