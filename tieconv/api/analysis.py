"""Measure how the embedding and the head relate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.opened import on_disk
from tieconv.sources.local.files import locate, open_files
from tieconv.sources.user_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.results.analysis import Analysis


def analyze(
    path: str | Path = ".",
    *,
    text: str | Path | None = None,
    against: str | Path | None = None,
    second: str | Path | None = None,
    counts: str | Path | None = None,
    maps: bool = False,
    neighbours: Literal["auto", "exact", "sampled"] = "auto",
    similarity: bool | None = None,
    embed: str | None = None,
    head: str | None = None,
) -> Analysis:
    """Measure how embedding and head relate, whether they may be tied, and which rows are unused.

    ``against`` is an untied model: the result then says which of its two tables the tied table resembles. ``second`` is
    an untied model of another seed, which gives the upper limits for that. ``counts`` is a file with a token id and a
    count on each line. The result then says how the row norms follow the frequency of tokens. ``maps`` adds the
    positions of the tokens in each table. ``neighbours`` is ``sampled``, ``exact`` or ``auto``: exact for up to 16,384
    tokens. ``similarity`` compares the two tables of an untied model with each other. By default it does so for tables
    of ordinary size.

    Memory is bounded for any vocabulary, and only numpy is needed. With a file of ``text``, transformers runs the model
    on the text. Raises `UnreadableError` if the model has no embedding of floats, or if the model or its tokenizer
    cannot be loaded. Raises `RefusedError` if a text cannot measure the class, or if an alignment has no meaning.
    """
    from tieconv.analysis import find, report
    from tieconv.plans import forecast_retie

    words = None if text is None else read_text(str(text))
    refuse_graphs(path)
    listing = locate(str(on_disk(path, True)))
    against, second = (None if model_path is None else on_disk(model_path, True) for model_path in (against, second))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head)
        findings = find(evidence, files, words, forecast_retie(evidence))
        from tieconv.analysis.alignment import extended

        return extended(
            report(findings, None if counts is None else str(counts)),
            findings,
            against,
            second,
            maps=maps,
            exact={"auto": None, "exact": True, "sampled": False}[neighbours],
            similarity=similarity,
        )
