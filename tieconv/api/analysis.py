"""Measure how the embedding and the head relate, also over a training run and of toy models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tieconv.api.evidence import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.value_type import check_choice
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.opened import on_disk, opened
from tieconv.sources.local import locate, open_files
from tieconv.sources.user_files import read_text

if TYPE_CHECKING:
    from tieconv.checkpoint.results.analysis import Analysis, Evolution


# Measure how the embedding and the head relate.


def analyze(
    path: str | Path = ".",
    *,
    text: str | Path | None = None,
    against: str | Path | None = None,
    second: str | Path | None = None,
    counts: str | Path | None = None,
    maps: bool = False,
    exact: bool | None = None,
    neighbours: Literal["auto", "exact", "sampled"] = "auto",
    similarity: bool | None = None,
    embed: str | None = None,
    head: str | None = None,
) -> Analysis:
    """Measure how embedding and head relate, whether they may be tied, and which rows are unused.

    ``against`` is an untied model: the result then says which of its two tables the tied table resembles. ``second`` is
    an untied model of another seed, which gives the upper limits for that. ``counts`` is a file with a token id and a
    count on each line. The result then says how the row norms follow the frequency of tokens. ``maps`` adds the
    positions of the tokens in each table. ``exact`` measures all tokens, by default for up to 16,384. Otherwise figures
    of long tables are of samples, with intervals. ``neighbours`` is another spelling of it. ``similarity`` compares the
    two tables of an untied model with each other. By default it does so for tables of ordinary size.

    Memory is bounded for any vocabulary, and only numpy is needed. With a file of ``text``, transformers runs the model
    on the text. Raises `UnreadableError` if the model has no embedding of floats, or if the model or its tokenizer
    cannot be loaded. Raises `RefusedError` if a text cannot measure the class, or if an alignment has no meaning.
    """
    from tieconv.analysis import find, report
    from tieconv.plans.verbs.retie import forecast_retie

    words = None if text is None else read_text(str(text))
    refuse_graphs(path)
    exact = _asked_exactly(exact, neighbours)
    listing = locate(str(on_disk(path, True)))
    against, second = (None if model_path is None else on_disk(model_path, True) for model_path in (against, second))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head)
        findings = find(evidence, files, words, forecast_retie(evidence), exact)
        from tieconv.analysis.alignment import extended

        analysis = report(findings, None if counts is None else str(counts))
        return extended(analysis, findings, against, second, maps=maps, exact=exact, similarity=similarity)


def _asked_exactly(exact: bool | None, neighbours: str) -> bool | None:
    spellings = {"auto": exact, "exact": True, "sampled": False}
    check_choice("neighbours", neighbours, spellings)
    return spellings[neighbours]


# Measure how the tables of a model change over its revisions.


def analyze_revisions(
    path: str | Path,
    revisions: str | Sequence[str],
    *,
    against: str | Path | None = None,
    resume: str | Path | None = None,
    exact: bool | None = None,
    neighbours: Literal["auto", "exact", "sampled"] = "auto",
    embed: str | None = None,
    head: str | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Evolution:
    """Measure the tables of each revision of a model, with the floor of each figure.

    ``revisions`` are revisions of a model on the Hub, directories below ``path`` otherwise, or whole models. A text
    separates them with commas or white space. ``against`` is an untied model to compare tied tables with. ``resume`` is
    a file to which each measured revision is added. Revisions in it are measured again only if they changed.

    Of a remote model, only headers, the two tables and the first revision's tokenizer are fetched, once. Raises
    `RefusedError` for a list that names too few revisions, and `UnreadableError` if a revision cannot be read.
    """
    from tieconv.analysis.alignment import opened as opened_subject, untied_tables
    from tieconv.analysis.evolution import EvolutionFile, Request, evolve, identity, revisions as named

    exact = _asked_exactly(exact, neighbours)
    with ExitStack() as stack:
        untied, reference = None, ""
        if against is not None:
            with opened(str(against)) as (listing, _, revision):
                reference = identity(listing, revision)
            untied = untied_tables(stack.enter_context(opened_subject(on_disk(against, True))))
        request = Request(embed, head, exact, untied, reference)
        file = EvolutionFile(None if resume is None else str(resume))
        return evolve(os.fspath(path), named(os.fspath(path), revisions), opened, request, file, done)


# Run the demonstration: a toy model, trained tied and untied, and its table.


def run_demo(out: str | Path, *, steps: int, seed: int, done: Callable[[int, int], None]) -> Analysis:
    """Train the toys in the new directory ``out`` and return their analysis.

    ``done`` is called after each step with the steps so far and of all.
    """
    from tieconv.demo.toys import run

    return run(Path(out), steps=steps, seed=seed, done=done)


def demo_table(analysis: Analysis) -> str:
    """Return the demonstration's table in plain text."""
    from tieconv.demo.toys import render_text as render

    return render(analysis)
