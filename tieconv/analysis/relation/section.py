"""The section *Relation*: which class, by what evidence, against what chance gives."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import lengths
from tieconv.analysis.model.series import points, ranges
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.relation.classify import Related
from tieconv.analysis.relation.grams import spectrum
from tieconv.analysis.relation.structured_difference import equal_share
from tieconv.checkpoint.results.analysis import Kinship, Measure, Section
from tieconv.text import count

TITLE = "Relation"


def one_table(subject: Subject) -> Section:
    """For a model whose head is its embedding, or which has none."""
    table = subject.embed
    output = subject.evidence.head.output_head
    if output is None:
        sentence = "This class has an input table and no output head: there is nothing to tie."
    elif output.tied_to or output.stored:
        sentence = "One table serves both ends: input and output are the same tensor."
    else:
        sentence = f"{output.name} is not stored and nothing is declared tied: loaders will start it at random."
    series = {"embed_norm": points(lengths(table)), "spectrum": points(spectrum(table)[0])}
    measures = (Measure("rows", float(table.rows)), Measure("columns", float(table.width)))
    return Section(TITLE, sentence, measures, series, {"embedding": table.record.name})


def two_tables(subject: Subject, related: Related) -> Section:
    """For a model that stores both."""
    head = subject.output
    moments = related.moments
    series = {
        "embed_norm": points(moments.norms[0]),
        "head_norm": points(moments.norms[1]),
        "row_difference": points(moments.distances),
        "spectrum": points(spectrum(subject.embed)[0]),
        "head_spectrum": points(spectrum(head)[0]),
    }
    detail: dict[str, object] = {
        "embedding": subject.embed.record.name,
        "head": head.record.name,
        "class": str(related.kind),
        "within_rounding": related.within_rounding,
        **related.detail,
    }
    if related.kind not in (Kinship.BIT_EQUAL, Kinship.CAST):
        share = equal_share(moments)
        detail |= {"rows_equal": share.rows, "columns_equal": share.columns}
    if moments.unequal.any():
        detail["rows_differing_ranges"] = ranges(np.flatnonzero(moments.unequal))
    text = sentence(related)
    if related.kind is Kinship.GAUGE and subject.final is not None and subject.final.capped:
        text = text.replace("which the softmax cannot see", "which the soft cap of the logits sees")
    return Section(TITLE, text, _measures(related), series, detail)


def sentence(related: Related) -> str:
    """What the class means, in one sentence."""
    moments, detail = related.moments, related.detail
    differing = int(np.count_nonzero(moments.unequal))
    left = f"{related.residual:.2g}" if related.residual is not None else "?"
    differ = "differs" if differing == 1 else "differ"
    equal = f"equal once rounded to {moments.cast}" if moments.cast else "equal bit by bit"
    texts = {
        Kinship.BIT_EQUAL: "The head is the embedding, byte for byte.",
        Kinship.CAST: f"The tables are equal once the wider one is rounded to {moments.cast}.",
        Kinship.ROW_SUBSET: _subset(related),
        Kinship.ROW_PERMUTATION: f"{count(int(str(detail.get('rows_matched', 0))), 'row')} of the head are rows of the "
        "embedding, in another order: ids were renumbered on one side.",
        Kinship.ROWS_DIFFER: f"{count(differing, 'row')} of {moments.rows:,} {differ}, the others are {equal}.",
        Kinship.GAUGE: "The head is the embedding with one vector added to every row, which the softmax cannot see.",
        Kinship.SCALAR: f"The head is the embedding times {detail.get('factor', 0):.6g}, to within rounding.",
        Kinship.DIAGONAL: "The head is the embedding with each column scaled, as folding a norm into the head leaves "
        "it, to within rounding.",
        Kinship.ORTHOGONAL: f"The head is the embedding turned by an orthogonal matrix; {left} of it is left over.",
        Kinship.SPD: "The head is the embedding times a symmetric positive definite matrix, as a norm fold and a "
        f"rotation leave it; {left} of it is left over.",
        Kinship.LINEAR: f"The head is a linear map of the embedding; {left} of it is left over.",
        Kinship.DRIFT: _drift(related, left),
        Kinship.ROW_SCALED: "The head is the embedding with each row scaled, by factors from "
        f"{detail.get('factor_min', 0):.3g} to {detail.get('factor_max', 0):.3g}, to within rounding.",
        Kinship.LOW_RANK: f"The head is the embedding plus a matrix of rank {detail.get('rank')}, to within rounding, "
        "as merging an adapter into the head leaves it.",
        Kinship.PARTLY_EQUAL: f"The tables are equal in part: {_share(related)}. No factor or linear map gives one "
        "table from the other.",
        Kinship.INDEPENDENT: f"The tables are independent: {_share(related) or 'no row or column is equal'}, and no "
        "factor or linear map gives one table from the other.",
        Kinship.UNKNOWN: f"Nothing can be said: {detail.get('reason', 'the tables are too small')}.",
    }
    return texts[related.kind]


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


def _drift(related: Related, left: str) -> str:
    group = related.detail.get("group")
    if related.within_rounding:
        return f"The difference is {left} of the head, no more than rounding to the stored type leaves."
    if group:
        each = "row" if group == related.moments.width else f"{group} numbers"
        return (
            f"The head is the embedding in 8-bit codes and back, one scale for each {each}: the difference is {left} "
            "of the head."
        )
    share = related.retrieval.get("as stored", 1.0)
    nearest = "each row is still nearest to its own"
    if share < 1:
        nearest = f"{share:.0%} of the rows are still nearest to their own"
    equal = _share(related)
    drift = f"The tables started as one and drifted apart: the difference is {left} of the head, and {nearest}."
    return f"{drift} {equal[0].upper()}{equal[1:]}." if equal else drift


def _subset(related: Related) -> str:
    detail = related.detail
    extra = int(str(detail.get("extra_rows", 0)))
    larger = "head" if extra > 0 else "embedding"
    if detail.get("prefix"):
        return f"The tables are equal row by row, and the {larger} goes on for {count(abs(extra), 'row')} more."
    matched, rows = int(str(detail.get("rows_matched", 0))), int(str(detail.get("rows", 0)))
    if matched < rows:
        return f"{matched:,} of {rows:,} rows of the smaller table stand in the {larger}, at another place."
    return f"Every row of the smaller table stands in the {larger}, at another place: the vocabulary was cut."


def _measures(related: Related) -> tuple[Measure, ...]:
    moments = related.moments
    rows, width = moments.rows, moments.width
    says = f"once the wider type is rounded to {moments.cast}" if moments.cast else ""
    measures = [Measure("rows that differ", float(np.count_nonzero(moments.unequal)), n=rows, unit="rows", says=says)]
    lost = rows - moments.count
    if lost:
        measures.append(
            Measure("rows with NaN or infinity", float(lost), n=rows, unit="rows", says="left out of the fits")
        )
    for name, residual, most in _residuals(related):
        measures.append(
            Measure(
                f"residual, {name}", residual, floor=most, ceiling=1.0, n=moments.count, says=_reading(residual, most)
            )
        )
    if related.linear:
        says = "the share of the head's energy that a linear map of the embedding explains, chance taken off"
        measures.append(
            Measure("adjusted R²", related.linear.adjusted, floor=0.0, ceiling=1.0, n=moments.count, says=says)
        )
        measures.append(
            Measure("R²", related.linear.r2, floor=width / rows, ceiling=1.0, n=moments.count, says="not corrected")
        )
    for name, value in related.retrieval.items():
        says = "share of rows whose nearest row of the head, by centred cosine, is their own; fitted without them"
        measures.append(Measure(f"P@1, {name}", value, floor=1 / rows, ceiling=1.0, n=related.asked, says=says))
    return tuple(measures)


def _residuals(related: Related) -> list[tuple[str, float, float]]:
    """The best of each kind of column map, and of the linear one; (name, residual, what rounding explains)."""
    names = {Kinship.DRIFT: "as stored", Kinship.GAUGE: "shift", Kinship.SCALAR: "scalar", Kinship.DIAGONAL: "diagonal"}
    best: dict[str, tuple[float, float]] = {}
    for fit in related.fits:
        name = names[fit.kind]
        if name not in best or fit.residual < best[name][0]:
            best[name] = (fit.residual, fit.tolerance)
    if related.linear and related.kind in (Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR):
        best["linear"] = (related.residual or 0.0, related.tolerance or 0.0)
    return [(name, *figures) for name, figures in best.items()]


def _reading(residual: float, most: float) -> str:
    return "rounding explains it (the floor)" if residual <= most else "more than rounding (the floor) explains"
