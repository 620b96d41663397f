"""Measure how the tables of a model change over its revisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from tieconv.opened import on_disk, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.results.analysis import Evolution


def analyze_revisions(
    path: str | Path,
    revisions: str | Sequence[str],
    *,
    against: str | Path | None = None,
    resume: str | Path | None = None,
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
    from tieconv.analysis.alignment import opened as opened_subject
    from tieconv.analysis.alignment import untied_tables
    from tieconv.analysis.evolution import EvolutionFile, Request, evolve, identity
    from tieconv.analysis.evolution import revisions as named

    exact = {"auto": None, "exact": True, "sampled": False}[neighbours]
    with ExitStack() as stack:
        untied, reference = None, ""
        if against is not None:
            with opened(str(against)) as (listing, _, revision):
                reference = identity(listing, revision)
            untied = untied_tables(stack.enter_context(opened_subject(on_disk(against, True))))
        request = Request(embed, head, exact, untied, reference)
        file = EvolutionFile(None if resume is None else str(resume))
        return evolve(str(path), named(str(path), revisions), opened, request, file, done)
