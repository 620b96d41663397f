"""Measure the embedding tables from the weights, and with a text also the model. Imports numpy: import it lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tieconv.analysis import bias_section, rows_section
from tieconv.analysis.model.subject import Subject, open_subject
from tieconv.analysis.relation import section as relation_section
from tieconv.analysis.relation.classify import Related, relate_tables
from tieconv.analysis.retie_cost import section as retie_section
from tieconv.analysis.retie_cost.cost import Costs, costs
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.analysis import Analysis, Kinship, Section
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import RetieForecast
from tieconv.errors import UnreadableError
from tieconv.sources.local.files import FileSet
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.analysis.retie_cost.section import OnText


@record
class Findings:
    """The relation of a model's tables and the cost of a re-tie.

    ``related`` and ``costs`` are ``None`` if the model has one table, ``measured`` and ``gradients`` without a text.
    """

    subject: Subject
    related: Related | None
    costs: Costs | None
    measured: OnText | None = None
    gradients: Section | None = None


@np.errstate(all="ignore")  # the report counts NaN and infinity
def find(evidence: Inspection, files: FileSet, text: str | None, forecast: RetieForecast) -> Findings:
    """Measure one model.

    Raises `UnreadableError` if there is no table of floats. With ``text`` it also raises it if the model cannot run,
    and `RefusedError` if the model has no token probabilities.
    """
    if text is not None and evidence.checkpoint.table:
        raise UnreadableError(
            f"{shown(evidence.checkpoint.source)} is a training checkpoint, and transformers runs only a saved model",
            evidence.checkpoint.read_only,
            "analyze.chunks",
        )
    subject = open_subject(evidence, files, forecast)
    related = relate_tables(subject.embed, subject.head) if subject.head else None
    costs_found = costs(subject, related) if related else None
    if text is None:
        return Findings(subject, related, costs_found)
    from tieconv.analysis.model.subject import gradients_section
    from tieconv.analysis.model.tables import lengths
    from tieconv.analysis.retie_cost.section import load_model, on_text, survivors

    reference = load_model(subject, text)
    zero = (related.moments.norms[1] if related else lengths(subject.output)) == 0
    untied = related is not None and (related.kind is not Kinship.BIT_EQUAL or bool(subject.flip.third))
    may = untied and costs_found is not None and not costs_found.free and not subject.flip.barred
    measured = on_text(reference, zero, survivors(subject) if may else {})
    return Findings(subject, related, costs_found, measured, gradients_section(reference, tied=not untied))


@np.errstate(all="ignore")
def report(findings: Findings, counts: str | None = None) -> Analysis:
    """Return the analysis of one model. ``counts`` is a file of token counts: see `read_counts` for its errors."""
    pair = _pair(findings)
    sections = [
        *pair,
        rows_section.rows_section(findings.subject, findings.related, findings.measured),
        bias_section.bias_section(findings.subject, findings.measured),
        *([findings.gradients] if findings.gradients else []),
        *([_frequency(findings, counts)] if counts is not None else []),
    ]
    return Analysis(findings.subject.evidence.checkpoint.source, tuple(sections), _kind(findings), pair[1].sentence)


def _frequency(findings: Findings, path: str) -> Section:
    from tieconv.analysis.rows_section import norm_frequency, read_counts

    return norm_frequency(findings.subject, findings.related, read_counts(path, findings.subject.output.rows))


def _kind(findings: Findings) -> str:
    if findings.related is not None:
        return str(findings.related.kind)
    output = findings.subject.evidence.head.output_head
    return str(Kinship.ALIAS if output is not None and (output.tied_to or output.stored) else Kinship.UNKNOWN)


def _pair(findings: Findings) -> tuple[Section, Section]:
    subject, related = findings.subject, findings.related
    if related is None or findings.costs is None:
        return relation_section.one_table(subject), retie_section.one_table(subject)
    measured = findings.measured.retie if findings.measured else ()
    relation = relation_section.two_tables(subject, related)
    return relation, retie_section.retie_section(subject, related, findings.costs, measured)
