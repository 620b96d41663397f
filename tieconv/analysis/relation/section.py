"""The section *Relation*: the class of the head, and its figures with their chance values."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import lengths
from tieconv.analysis.model.series import points, ranges
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.relation.figures import (
    RelationFigures,
)
from tieconv.analysis.relation.grams import spectrum
from tieconv.analysis.relation.related import Related
from tieconv.analysis.relation.sentences import sentence
from tieconv.analysis.relation.structured_difference import equal_share
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import Detail, Kinship, Measure, Section
from tieconv.checkpoint.value_type import record

TITLE = "Relation"


@record
class OneTable(Detail):
    """The name of the stored table."""

    embedding: str


@record
class TwoTables(Detail):
    """The names of both tables, the class of the head and its figures, and which rows and columns are equal."""

    embedding: str
    head: str
    kind: Kinship
    within_rounding: bool
    figures: RelationFigures
    rows_equal: int | None = None
    columns_equal: int | None = None
    rows_differing_ranges: list[list[int]] | None = None

    def to_dict(self) -> dict[str, object]:
        parts = stated_fields(self)
        names = {"embedding": parts.pop("embedding"), "head": parts.pop("head"), "class": str(parts.pop("kind"))}
        within = {"within_rounding": parts.pop("within_rounding")}
        del parts["figures"]
        return names | within | self.figures.to_dict() | parts


def one_table(subject: Subject) -> Section:
    """Return the section of a model with one stored table."""
    table = subject.embed
    output = subject.evidence.head.output_head
    if output is None:
        sentence = "This class has an input embedding and no output head. Nothing to tie."
    elif output.tied_to or output.stored:
        sentence = "The input embedding and the output head are one tensor."
    else:
        sentence = f"{output.name} is not stored and not tied to another tensor. Loaders fill it with random numbers."
    series = {"embed_norm": points(lengths(table)), "spectrum": points(spectrum(table)[0])}
    measures = (Measure("rows", float(table.rows)), Measure("columns", float(table.width)))
    return Section(TITLE, sentence, measures, series, OneTable(table.record.name))


def two_tables(subject: Subject, related: Related) -> Section:
    """Return the section of a model that stores both tables."""
    head = subject.output
    moments = related.moments
    series = {
        "embed_norm": points(moments.norms[0]),
        "head_norm": points(moments.norms[1]),
        "row_difference": points(moments.distances),
        "spectrum": points(spectrum(subject.embed)[0]),
        "head_spectrum": points(spectrum(head)[0]),
    }
    share = equal_share(moments) if related.kind not in (Kinship.BIT_EQUAL, Kinship.CAST) else None
    detail = TwoTables(
        subject.embed.record.name,
        head.record.name,
        related.kind,
        related.within_rounding,
        related.figures,
        share.rows if share else None,
        share.columns if share else None,
        ranges(np.flatnonzero(moments.unequal)) if moments.unequal.any() else None,
    )
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
        measures.append(
            Measure(
                f"residual, {name}", residual, floor=most, ceiling=1.0, n=moments.count, says=_reading(residual, most)
            )
        )
    if related.linear:
        says = "the share of the head's energy that a linear map of the embedding explains, corrected for chance"
        measures.append(
            Measure("adjusted R²", related.linear.adjusted, floor=0.0, ceiling=1.0, n=moments.count, says=says)
        )
        measures.append(
            Measure(
                "R²",
                related.linear.r2,
                floor=width / rows,
                ceiling=1.0,
                n=moments.count,
                says="not corrected for chance",
            )
        )
    for name, value in related.retrieval.items():
        says = "share of unfitted rows whose nearest row of the head, by centred cosine, has the same number"
        measures.append(Measure(f"P@1, {name}", value, floor=1 / rows, ceiling=1.0, n=related.asked, says=says))
    return tuple(measures)


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


def _reading(residual: float, most: float) -> str:
    return "rounding (the floor) explains it" if residual <= most else "more than rounding (the floor) explains"
