"""The sentences that describe how the head relates to the embedding."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from tieconv.analysis.relation.figures import (
    ColumnsScaled,
    LinearlyMapped,
    LowRank,
    NoFigures,
    NotClassified,
    OnceRounded,
    Orthogonal,
    Quantised,
    RowsAppended,
    RowsDiffering,
    RowsEqual,
    RowsMoved,
    RowsScaled,
    Scaled,
    Shifted,
)
from tieconv.analysis.relation.related import Related
from tieconv.analysis.relation.structured_difference import equal_share
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.text import count


def sentence(related: Related) -> str:
    """Return the sentence that describes the relation."""
    match related.figures:
        case RowsAppended(extra_rows=extra):
            larger = _larger(extra)
            return f"The common rows are equal, and the {larger} has {count(abs(extra), 'more row')}."
        case RowsMoved() as figures:
            return _moved(figures, related.kind)
        case Scaled(factor=factor):
            return f"The head is the embedding times {factor:.6g}, to within rounding."
        case RowsScaled(factor_min=least, factor_max=most):
            return (
                f"The head is the embedding with each row scaled, to within rounding. The factors are {least:.3g} to "
                f"{most:.3g}."
            )
        case LowRank(rank=rank, explained=explained):
            return (
                f"The head is the embedding plus a matrix of rank {rank}, to within rounding. It explains "
                f"{_percent(explained)} of the energy of the difference. Merging an adapter into the head has this "
                "effect."
            )
        case Quantised() as figures:
            return _coded(figures, related)
        case NotClassified(reason=reason):
            return f"The relation is unknown: {reason}."
        case NoFigures() | RowsEqual() | OnceRounded() | RowsDiffering() | Shifted() | ColumnsScaled():
            return _of_class(related)
        case Orthogonal() | LinearlyMapped():
            return _of_class(related)
        case never:
            assert_never(never)


def _of_class(related: Related) -> str:
    """Return the sentence of a class that has no separate figures."""
    moments = related.moments
    differing = int(np.count_nonzero(moments.unequal))
    left = _left(related)
    differ = "differs" if differing == 1 else "differ"
    equal = f"equal after rounding to {moments.cast}" if moments.cast else "byte-identical"
    texts = {
        Kinship.BIT_EQUAL: "The head and the embedding are byte-identical.",
        Kinship.CAST: f"The tables are equal after the wider one is rounded to {moments.cast}.",
        Kinship.ROWS_DIFFER: f"{differing:,} of {count(moments.rows, 'row')} {differ}. The others are {equal}.",
        Kinship.GAUGE: "The head is the embedding with one vector added to every row, which the softmax cannot see.",
        Kinship.DIAGONAL: "The head is the embedding with each column scaled, to within rounding. Folding a norm into "
        "the head has this effect.",
        Kinship.ORTHOGONAL: f"The head is the embedding times an orthogonal matrix. The residual is {left} of it.",
        Kinship.SPD: "The head is the embedding times a symmetric positive definite matrix. A norm fold and a rotation "
        f"have this effect. The residual is {left} of it.",
        Kinship.LINEAR: f"The head is a linear map of the embedding. The residual is {left} of it.",
        Kinship.DRIFT: _drift(related),
        Kinship.PARTLY_EQUAL: f"The tables are partly equal: {_share(related)}. No factor or linear map gives one "
        "table from the other.",
        Kinship.INDEPENDENT: f"The tables are independent: {_share(related) or 'no row or column is equal'}. No "
        "factor or linear map gives one table from the other.",
    }
    return texts[related.kind]


def _percent(share: float) -> str:
    """Return a share below 1 without rounding it to 100 %."""
    return f"{min(share, 0.9999):.2%}"


def _left(related: Related) -> str:
    """Return the residual of the map as a share of the head."""
    return f"{related.residual:.2g}" if related.residual is not None else "?"


def _share(related: Related) -> str:
    """Return which rows and columns are equal, or an empty text."""
    share, cast = equal_share(related.moments), related.moments.cast
    equal = f"equal after rounding to {cast}" if cast else "byte-identical"
    parts = [
        f"{equals:,} of {whole:,} {name} ({equals / whole:.0%})"
        for equals, whole, name in ((share.rows, share.of_rows, "rows"), (share.columns, share.of_columns, "columns"))
        if equals
    ]
    return f"{' and '.join(parts)} are {equal}" if parts else ""


def _coded(figures: Quantised, related: Related) -> str:
    each = "row" if figures.group == related.moments.width else f"{figures.group} numbers"
    scales = f"one scale for each {each}" if figures.group else "no scale"
    article = "a" if figures.scheme.startswith("Q") else "an"
    return (
        f"The head is the embedding after {article} {figures.scheme} round trip, with {scales}. The difference is "
        f"{_left(related)} of the head."
    )


def _drift(related: Related) -> str:
    left = _left(related)
    if related.within_rounding:
        return f"The difference is {left} of the head, which rounding to the stored type explains."
    share = related.retrieval.get("as stored", 1.0)
    nearest = "Each row is still nearest to the same row of the other table."
    if share < 1:
        nearest = f"{share:.0%} of the rows are still nearest to the same row of the other table."
    equal = _share(related)
    drift = f"The tables were once equal and have drifted: the difference is {left} of the head. {nearest}"
    return f"{drift} {equal[0].upper()}{equal[1:]}." if equal else drift


def _moved(figures: RowsMoved, kind: Kinship) -> str:
    matched, rows, larger = figures.rows_matched, figures.rows, _larger(figures.extra_rows)
    if kind is Kinship.ROW_PERMUTATION:
        return (
            f"{count(matched, 'row')} of the head are rows of the embedding in another order. One table has other "
            "token ids."
        )
    if matched < rows:
        return f"{matched:,} of {rows:,} rows of the smaller table are in the {larger} under another row number."
    return f"Every row of the smaller table is in the {larger} under another row number. The vocabulary was reduced."


def _larger(extra_rows: int) -> str:
    return "head" if extra_rows > 0 else "embedding"
