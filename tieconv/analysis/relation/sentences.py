"""What the head is to the embedding, in one sentence."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from tieconv.analysis.relation.figures import (
    ColumnsScaled,
    IntegerCodes,
    LinearlyMapped,
    LowRank,
    NoFigures,
    NotClassified,
    OnceRounded,
    Orthogonal,
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
    """What the class means, in one sentence."""
    match related.figures:
        case RowsAppended(extra_rows=extra):
            larger = _larger(extra)
            return f"The tables are equal row by row, and the {larger} goes on for {count(abs(extra), 'row')} more."
        case RowsMoved() as figures:
            return _moved(figures, related.kind)
        case Scaled(factor=factor):
            return f"The head is the embedding times {factor:.6g}, to within rounding."
        case RowsScaled(factor_min=least, factor_max=most):
            return (
                f"The head is the embedding with each row scaled, by factors from {least:.3g} to {most:.3g}, to within "
                "rounding."
            )
        case LowRank(rank=rank):
            return (
                f"The head is the embedding plus a matrix of rank {rank}, to within rounding, as merging an adapter "
                "into the head leaves it."
            )
        case IntegerCodes(group=group):
            return _coded(group, related)
        case NotClassified(reason=reason):
            return f"Nothing can be said: {reason}."
        case NoFigures() | RowsEqual() | OnceRounded() | RowsDiffering() | Shifted() | ColumnsScaled():
            return _of_class(related)
        case Orthogonal() | LinearlyMapped():
            return _of_class(related)
        case never:
            assert_never(never)


def _of_class(related: Related) -> str:
    """The sentence of a class that says no figure of its own."""
    moments = related.moments
    differing = int(np.count_nonzero(moments.unequal))
    left = _left(related)
    differ = "differs" if differing == 1 else "differ"
    equal = f"equal once rounded to {moments.cast}" if moments.cast else "equal bit by bit"
    texts = {
        Kinship.BIT_EQUAL: "The head is the embedding, byte for byte.",
        Kinship.CAST: f"The tables are equal once the wider one is rounded to {moments.cast}.",
        Kinship.ROWS_DIFFER: f"{count(differing, 'row')} of {moments.rows:,} {differ}, the others are {equal}.",
        Kinship.GAUGE: "The head is the embedding with one vector added to every row, which the softmax cannot see.",
        Kinship.DIAGONAL: "The head is the embedding with each column scaled, as folding a norm into the head leaves "
        "it, to within rounding.",
        Kinship.ORTHOGONAL: f"The head is the embedding turned by an orthogonal matrix; {left} of it is left over.",
        Kinship.SPD: "The head is the embedding times a symmetric positive definite matrix, as a norm fold and a "
        f"rotation leave it; {left} of it is left over.",
        Kinship.LINEAR: f"The head is a linear map of the embedding; {left} of it is left over.",
        Kinship.DRIFT: _drift(related),
        Kinship.PARTLY_EQUAL: f"The tables are equal in part: {_share(related)}. No factor or linear map gives one "
        "table from the other.",
        Kinship.INDEPENDENT: f"The tables are independent: {_share(related) or 'no row or column is equal'}, and no "
        "factor or linear map gives one table from the other.",
    }
    return texts[related.kind]


def _left(related: Related) -> str:
    """The share of the head that the map leaves over."""
    return f"{related.residual:.2g}" if related.residual is not None else "?"


def _share(related: Related) -> str:
    """Which rows and columns are equal; empty where none is."""
    share, cast = equal_share(related.moments), related.moments.cast
    equal = f"equal once rounded to {cast}" if cast else "equal bit by bit"
    parts = [
        f"{equals:,} of {whole:,} {name} ({equals / whole:.0%})"
        for equals, whole, name in ((share.rows, share.of_rows, "rows"), (share.columns, share.of_columns, "columns"))
        if equals
    ]
    return f"{' and '.join(parts)} are {equal}" if parts else ""


def _coded(group: int, related: Related) -> str:
    each = "row" if group == related.moments.width else f"{group} numbers"
    return (
        f"The head is the embedding in 8-bit codes and back, one scale for each {each}: the difference is "
        f"{_left(related)} of the head."
    )


def _drift(related: Related) -> str:
    left = _left(related)
    if related.within_rounding:
        return f"The difference is {left} of the head, no more than rounding to the stored type leaves."
    share = related.retrieval.get("as stored", 1.0)
    nearest = "each row is still nearest to its own"
    if share < 1:
        nearest = f"{share:.0%} of the rows are still nearest to their own"
    equal = _share(related)
    drift = f"The tables started as one and drifted apart: the difference is {left} of the head, and {nearest}."
    return f"{drift} {equal[0].upper()}{equal[1:]}." if equal else drift


def _moved(figures: RowsMoved, kind: Kinship) -> str:
    matched, rows, larger = figures.rows_matched, figures.rows, _larger(figures.extra_rows)
    if kind is Kinship.ROW_PERMUTATION:
        return (
            f"{count(matched, 'row')} of the head are rows of the embedding, in another order: ids were renumbered on "
            "one side."
        )
    if matched < rows:
        return f"{matched:,} of {rows:,} rows of the smaller table stand in the {larger}, at another place."
    return f"Every row of the smaller table stands in the {larger}, at another place: the vocabulary was cut."


def _larger(extra_rows: int) -> str:
    return "head" if extra_rows > 0 else "embedding"
