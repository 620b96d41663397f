"""Measures of the embedding space, from the weights alone unless text is given. Imports numpy: import it lazily."""

from __future__ import annotations

from tieconv.analysis import bias_section, relation_section, retie_section, rows_section
from tieconv.analysis.cost import costs
from tieconv.analysis.relation import Related, relate_tables
from tieconv.analysis.subject import Subject, open_subject
from tieconv.checkpoint.analysis import Analysis, Kinship, Section
from tieconv.checkpoint.inspection import Inspection
from tieconv.sources.local import FileSet


def analyze_model(evidence: Inspection, files: FileSet) -> Analysis:
    """What the weights of one model say. Raises `UnreadableError` where there is no table of floats."""
    subject = open_subject(evidence, files)
    related = relate_tables(subject.embed, subject.head) if subject.head else None
    sections = (
        *_pair(subject, related),
        rows_section.rows_section(subject, related),
        bias_section.bias_section(subject),
    )
    return Analysis(evidence.checkpoint.source, sections, _kind(subject, related), sections[1].sentence)


def _kind(subject: Subject, related: Related | None) -> str:
    if related is not None:
        return str(related.kind)
    output = subject.evidence.head.output_head
    return str(Kinship.ALIAS if output is not None and (output.tied_to or output.stored) else Kinship.UNKNOWN)


def _pair(subject: Subject, related: Related | None) -> tuple[Section, Section]:
    if related is None:
        return relation_section.one_table(subject), retie_section.tied_section()
    found = relation_section.two_tables(subject, related)
    return found, retie_section.retie_section(subject, related, costs(subject, related))
