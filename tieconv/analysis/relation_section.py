"""The section *Relation*: the class of the head, and its figures with their chance values."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.relation import Related
from tieconv.analysis.relation_maps import equal_share
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Array, points, ranges
from tieconv.checkpoint.results.analysis import Kinship, Measure, Section
from tieconv.text import count

TITLE = "Relation"


def one_table(subject: Subject, norms: Array) -> Section:
    """Return the section of a model with one stored table, whose rows have the lengths ``norms``."""
    table = subject.embed
    output = subject.evidence.head.output_head
    if output is None and not subject.evidence.family.trusted:
        sentence = "tieconv does not know the class, and found an input embedding and no output head."
    elif output is None:
        sentence = "This class has an input embedding and no output head. Nothing to tie."
    elif output.tied_to or output.stored:
        sentence = "The input embedding and the output head are one tensor."
    else:
        sentence = f"{output.name} is not stored and not tied to another tensor. Loaders fill it with random numbers."
    series = {"embed_norm": points(norms)}
    measures = (Measure("rows", float(table.rows)), Measure("columns", float(table.width)))
    return Section(TITLE, sentence, measures, series, {"embedding": table.record.name})


def two_tables(subject: Subject, related: Related) -> Section:
    """Return the section of a model that stores both tables."""
    moments = related.moments
    series = {
        "embed_norm": points(moments.norms[0]),
        "head_norm": points(moments.norms[1]),
        "row_difference": points(moments.distances),
    }
    detail: dict[str, object] = {
        "embedding": subject.embed.record.name,
        "head": subject.output.record.name,
        "class": related.kind,
        "within_rounding": related.within_rounding,
        **related.figures,
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


def _measures(related: Related) -> tuple[Measure, ...]:
    moments = related.moments
    rows, width = moments.rows, moments.width
    says = f"after the wider type is rounded to {moments.cast}" if moments.cast else ""
    measures = [Measure("rows that differ", float(np.count_nonzero(moments.unequal)), n=rows, unit="rows", says=says)]
    lost = rows - moments.count
    if lost:
        measures.append(
            Measure("rows with NaN or infinity", float(lost), n=rows, unit="rows", says="the fits skip them")
        )
    for name, residual, most in _residuals(related):
        says = "size of the difference; values at the floor are rounding only"
        measures.append(Measure(f"residual, {name}", residual, floor=most, ceiling=1.0, n=moments.count, says=says))
    if related.linear:
        says = "the share of the head's energy that a linear map of the embedding explains, corrected for chance"
        linear, says = related.linear, says + _between(related.linear.interval)
        measures += [
            Measure("adjusted R²", linear.adjusted, 0.0, 1.0, linear.rows, says=says),
            Measure("R²", linear.r2, width / linear.rows, 1.0, linear.rows, says="not corrected for chance"),
        ]
    for name, value in related.retrieval.items():
        says = "share of unfitted rows whose nearest row of the head, by centred cosine, has the same number"
        says += _between(share_interval(value, related.asked))
        measures.append(Measure(f"P@1, {name}", value, floor=1 / rows, ceiling=1.0, n=related.asked, says=says))
    return tuple(measures)


def _between(interval: tuple[float, float] | None) -> str:
    return f"; 95 % interval {interval[0]:.4f} to {interval[1]:.4f}, because rows were sampled" if interval else ""


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share that ``count`` sampled rows have (Wilson 1927)."""
    squared = 1.96**2 / count
    middle, half = share + squared / 2, (squared * (share * (1 - share) + squared / 4)) ** 0.5
    return (middle - half) / (1 + squared), (middle + half) / (1 + squared)


def _residuals(related: Related) -> list[tuple[str, float, float]]:
    """Return the best column map of each kind and the linear map: (name, residual, residual that rounding explains)."""
    names = {Kinship.DRIFT: "as stored", Kinship.GAUGE: "shift", Kinship.SCALAR: "scalar", Kinship.DIAGONAL: "diagonal"}
    best: dict[str, tuple[float, float]] = {}
    for fit in related.fits:
        name = names[fit.kind]
        if name not in best or fit.residual < best[name][0]:
            best[name] = (fit.residual, fit.tolerance)
    if related.linear and related.kind in (Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR):
        best["linear"] = (related.residual or 0.0, related.tolerance or 0.0)
    return [(name, *figures) for name, figures in best.items()]


def sentence(related: Related) -> str:
    """Return the sentence that describes the relation."""
    match related.figures:
        case {"rows": int(rows), "rows_matched": int(matched), "extra_rows": int(extra)}:
            return _moved(related.kind, rows, matched, extra)
        case {"prefix": True, "extra_rows": int(extra)}:
            return f"The common rows are equal, and the {_larger(extra)} has {count(abs(extra), 'more row')}."
        case {"factor": float(factor)} if related.kind is Kinship.SCALAR:
            return f"The head is the embedding times {factor:.6g}, to within rounding."
        case {"factor_min": float(least), "factor_max": float(most)}:
            return (
                f"The head is the embedding with each row scaled, to within rounding. The factors are {least:.3g} to "
                f"{most:.3g}."
            )
        case {"rank": int(rank), "explained": float(explained)}:
            return (
                f"The head is the embedding plus a matrix of rank {rank}, to within rounding. It explains "
                f"{min(explained, 0.9999):.2%} of the energy of the difference. Merging an adapter into the head has "
                "this effect."
            )
        case {"scheme": str(scheme), "group": int(group)}:
            each = "row" if group == related.moments.width else f"{group} numbers"
            scales = f"one scale for each {each}" if group else "no scale"
            article = "a" if scheme.startswith("Q") else "an"
            return (
                f"The head is the embedding after {article} {scheme} round trip, with {scales}. The difference is "
                f"{_left(related)} of the head."
            )
        case {"reason": str(reason)}:
            return f"The relation is unknown: {reason}."
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


def _moved(kind: Kinship, rows: int, matched: int, extra: int) -> str:
    if kind is Kinship.ROW_PERMUTATION:
        return (
            f"{count(matched, 'row')} of the head are rows of the embedding in another order. One table has other "
            "token ids."
        )
    larger = _larger(extra)
    if matched < rows:
        return f"{matched:,} of {rows:,} rows of the smaller table are in the {larger} under another row number."
    return f"Every row of the smaller table is in the {larger} under another row number. The vocabulary was reduced."


def _larger(extra_rows: int) -> str:
    return "head" if extra_rows > 0 else "embedding"
