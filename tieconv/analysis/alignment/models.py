"""Align the tables of models: `tieconv analyze TIED --against UNTIED --second UNTIED2`. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tieconv.analysis import Findings
from tieconv.analysis.alignment.compare import Untied, align
from tieconv.analysis.alignment.own_tables import own_tables, wanted
from tieconv.analysis.alignment.pair_figures import QUERIES
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
    """Yield the model of a path while its files are open. Raises `UnreadableError` as `analyze` does."""
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
    exact: bool | None = None,
    similarity: bool | None = None,
) -> Analysis:
    """Return the analysis with an alignment if ``against`` names an untied model, and with maps if ``maps`` is set.

    The two tables of an untied model are compared with each other too: see `wanted` for ``similarity``. Raises the
    errors of `align_models` and `opened`, and `RefusedError` for a ``second`` without ``against``.
    """
    if second is not None and against is None:
        raise RefusedError(
            "--second needs --against",
            "name the untied model: tieconv analyze TIED --against UNTIED --second UNTIED2",
        )
    sections = list(analysis.sections)
    related = findings.related
    if related is not None and wanted(findings.subject, related.kind, similarity):
        sections.append(own_tables(findings.subject, exact=exact))
    if against is not None:
        with ExitStack() as stack:
            untied, second_model = (stack.enter_context(opened(path)) if path else None for path in (against, second))
            assert untied is not None
            aligned = align_models(findings.subject, untied, second_model, exact=exact)
            sections.append(aligned)
            question = f"Which table of {shown(_source(untied))} does the tied table resemble?"
            analysis = replace(analysis, answered=Headline(question, aligned.sentence, aligned.certainty))
    if maps:
        sections += _maps(findings)
    return replace(analysis, sections=tuple(sections))


def _maps(findings: Findings) -> Iterator[Section]:
    """Yield the map of each table that has at least three rows with a direction."""
    subject = findings.subject
    for stored, role in ((subject.embed, "input embedding"), (subject.head, "output embedding")):
        if stored is not None:
            table = Table(role, stored.rows, stored.width, stored.pick_singles)
            colours = _colours(findings, stored.rows)
            section = plane(table, colours, f"Map: {role}", _coloured_rows(colours))
            if section is not None:
                yield section


def _colours(findings: Findings, rows: int) -> dict[str, Array]:
    """Return values by row that colour the map: the difference of the two tables, and the frequency in the text."""
    colours: dict[str, Array] = {}
    if findings.related is not None and findings.related.moments.unequal.any():
        colours["difference of the two rows"] = _filled(findings.related.moments.distances, rows)
    if findings.measured is not None:
        colours["log10(1 + times in the text)"] = _filled(np.log10(1 + findings.measured.counts), rows)
    return colours


def _filled(values: Array, rows: int) -> Array:
    """Return the values of the first ``rows`` rows, with 0 for rows without a value."""
    whole = np.zeros(rows)
    shared = min(rows, len(values))
    whole[:shared] = np.nan_to_num(values[:shared], posinf=0.0)
    return whole


def _coloured_rows(colours: Mapping[str, Array]) -> Array | None:
    """Return the rows with a positive value in some colour, (rows,) of bool; ``None`` without colours."""
    marks = [values > 0 for values in colours.values()]
    return np.logical_or.reduce(marks) if marks else None


def align_models(
    tied: Subject,
    untied: Subject,
    second: Subject | None = None,
    *,
    queries: int = QUERIES,
    seed: int = 0,
    exact: bool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Section:
    """Return the alignment of the tables of models, matched by the text of their tokens.

    Raises `RefusedError` if ``tied`` has two different tables, if a reference is tied, or if no tokens match.
    """
    _require_tied(tied)
    if second is not None:
        _require_another(untied, second)
    references = [untied_tables(model) for model in (untied, second) if model is not None]
    return align(
        table_of(tied, tied.embed, "tied table"),
        references[0],
        references[1] if second is not None else None,
        queries=queries,
        seed=seed,
        exact=exact,
        progress=progress,
    )


def table_of(subject: Subject, stored: StoredTable, role: str) -> Table:
    """Return a stored table, (rows, width), with the tokens of its rows."""
    tokens = token_bytes(subject.tokens.text, stored.rows) if subject.tokens else None
    return Table(f"{role} of {shown(_source(subject))}", stored.rows, stored.width, stored.pick_singles, tokens)


def untied_tables(subject: Subject) -> Untied:
    """Return both tables of an untied model. Raises `RefusedError` if it has one table."""
    if subject.head is None or equal_tables(subject.embed, subject.head):
        problem = "stores one table" if subject.head is None else "has two equal tables"
        raise RefusedError(
            f"{shown(_source(subject))} {problem}, but a reference must be untied",
            "name an untied model: tieconv analyze TIED --against UNTIED",
        )
    return Untied(
        table_of(subject, subject.embed, "input embedding"), table_of(subject, subject.head, "output embedding")
    )


def _require_another(untied: Subject, second: Subject) -> None:
    """Refuse a second model with a table of the first, because the ceilings compare two seeds."""
    for mine, theirs in ((untied.embed, second.embed), (untied.output, second.output)):
        if mine.width == theirs.width and mine.rows == theirs.rows and equal_tables(mine, theirs):
            raise RefusedError(
                f"{shown(_source(second))} and {shown(_source(untied))} have the same {shown(mine.record.name)}, but "
                "the ceilings need a model of another seed",
                "name another untied model with --second, or omit --second",
            )


def _require_tied(subject: Subject) -> None:
    if subject.head is None or equal_tables(subject.embed, subject.head):
        return
    raise RefusedError(
        f"{shown(_source(subject))} has two tables that differ, but alignment needs a tied table",
        f"see how they relate: tieconv analyze {shell_word(_source(subject))}",
    )


def _source(subject: Subject) -> str:
    return subject.evidence.checkpoint.source
