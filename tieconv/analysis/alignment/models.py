"""Align models rather than tables: `tieconv analyze TIED --against UNTIED --second UNTIED2`. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tieconv.analysis import Findings
from tieconv.analysis.alignment.compare import QUERIES, Untied, align
from tieconv.analysis.alignment.plane import plane
from tieconv.analysis.alignment.token_strings import token_bytes
from tieconv.analysis.alignment.token_tables import Array, Table
from tieconv.analysis.model.subject import Subject, open_subject
from tieconv.analysis.model.tables import Table as StoredTable
from tieconv.analysis.relation.classify import equal_tables
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.analysis import Analysis, Headline, Section
from tieconv.errors import RefusedError
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local.files import locate, open_files
from tieconv.text import shell_word, shown


@contextmanager
def opened(path: str | Path, *, embed: str | None = None, head: str | None = None) -> Iterator[Subject]:
    """The model of a path, its files open meanwhile. Raises `UnreadableError` as `analyze` does."""
    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        yield open_subject(inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head), files)


def extended(
    analysis: Analysis,
    findings: Findings,
    against: str | Path | None = None,
    second: str | Path | None = None,
    *,
    maps: bool = False,
) -> Analysis:
    """The analysis with the alignment of its model, where ``against`` names an untied one, and with maps of its tables.

    Raises what `align_models` and `opened` raise, and `RefusedError` for a ``second`` without ``against``.
    """
    if second is not None and against is None:
        raise RefusedError(
            "--second gives the ceilings of an alignment, and there is none without --against",
            "name the untied model: tieconv analyze TIED --against UNTIED --second UNTIED2",
        )
    sections = list(analysis.sections)
    if against is not None:
        with ExitStack() as stack:
            untied, second_model = (stack.enter_context(opened(path)) if path else None for path in (against, second))
            assert untied is not None
            aligned = align_models(findings.subject, untied, second_model)
            sections.append(aligned)
            question = f"Which table of {shown(_source(untied))} is the tied table like?"
            analysis = replace(analysis, answered=Headline(question, aligned.sentence, aligned.certainty))
    if maps:
        sections += _maps(findings)
    return replace(analysis, sections=tuple(sections))


def _maps(findings: Findings) -> Iterator[Section]:
    """Of each table; none of one that has fewer than three rows with a direction."""
    subject = findings.subject
    for stored, role in ((subject.embed, "input embedding"), (subject.head, "output embedding")):
        if stored is not None:
            table = Table(role, stored.rows, stored.width, stored.pick)
            colours = _colours(findings, stored.rows)
            section = plane(table, colours, f"Map: {role}", _telling(colours))
            if section is not None:
                yield section


def _colours(findings: Findings, rows: int) -> dict[str, Array]:
    """What tells tokens apart beyond their rows: how the two tables differ there, how often the text has them."""
    colours: dict[str, Array] = {}
    if findings.related is not None and findings.related.moments.unequal.any():
        colours["difference of the two rows"] = _filled(findings.related.moments.distances, rows)
    if findings.measured is not None:
        colours["log10(1 + times in the text)"] = _filled(np.log10(1 + findings.measured.counts), rows)
    return colours


def _filled(values: Array, rows: int) -> Array:
    """The values of the first ``rows`` rows, 0 for those that have none."""
    whole = np.zeros(rows)
    shared = min(rows, len(values))
    whole[:shared] = np.nan_to_num(values[:shared], posinf=0.0)
    return whole


def _telling(colours: Mapping[str, Array]) -> Array | None:
    """The rows that a colour says something of; ``None`` where there is none."""
    marks = [values > 0 for values in colours.values()]
    return np.logical_or.reduce(marks) if marks else None


def align_models(
    tied: Subject,
    untied: Subject,
    second: Subject | None = None,
    *,
    queries: int = QUERIES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Section:
    """What `align` finds for the tables of models, joined on what their tokens write.

    Raises `RefusedError` where ``tied`` has two tables that differ, where a reference has one table only, and where
    tokens cannot be matched.
    """
    _require_tied(tied)
    if second is not None:
        _require_another(untied, second)
    references = [_untied(model) for model in (untied, second) if model is not None]
    return align(
        table_of(tied, tied.embed, "tied table"),
        references[0],
        references[1] if second is not None else None,
        queries=queries,
        seed=seed,
        progress=progress,
    )


def table_of(subject: Subject, stored: StoredTable, role: str) -> Table:
    """A stored table with the names of its rows, (rows, width)."""
    tokens = token_bytes(subject.tokens.text, stored.rows) if subject.tokens else None
    return Table(f"{role} of {shown(_source(subject))}", stored.rows, stored.width, stored.pick, tokens)


def _untied(subject: Subject) -> Untied:
    if subject.head is None or equal_tables(subject.embed, subject.head):
        problem = "is tied: it has one table" if subject.head is None else "has two equal tables, as a tied one has"
        raise RefusedError(
            f"{shown(_source(subject))} {problem}, and a reference needs an input and an output table of its own",
            "name an untied model: tieconv analyze TIED --against UNTIED",
        )
    return Untied(
        table_of(subject, subject.embed, "input embedding"), table_of(subject, subject.head, "output embedding")
    )


def _require_another(untied: Subject, second: Subject) -> None:
    """A model is as like itself as can be: no ceiling of what two seeds share."""
    for mine, theirs in ((untied.embed, second.embed), (untied.output, second.output)):
        if mine.width == theirs.width and mine.rows == theirs.rows and equal_tables(mine, theirs):
            raise RefusedError(
                f"{shown(_source(second))} holds the {shown(mine.record.name)} of {shown(_source(untied))}, and the "
                "ceilings need a model of another seed",
                "name another untied model with --second, or leave --second out",
            )


def _require_tied(subject: Subject) -> None:
    if subject.head is None or equal_tables(subject.embed, subject.head):
        return
    raise RefusedError(
        f"{shown(_source(subject))} has two tables that differ, and alignment asks which role one shared table plays",
        f"see what they are to each other: tieconv analyze {shell_word(_source(subject))}",
    )


def _source(subject: Subject) -> str:
    return subject.evidence.checkpoint.source
