"""What the two tables are to each other, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.opened import on_disk
from tieconv.sources.local.files import locate, open_files
from tieconv.sources.texts import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.results.analysis import Analysis


def analyze(
    path: str | Path = ".",
    *,
    text: str | Path | None = None,
    against: str | Path | None = None,
    second: str | Path | None = None,
    maps: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> Analysis:
    """What embedding and head are to each other, whether they may be tied, and which rows are unused.

    ``against``, an untied model, adds which of its two tables the tied one is like, and ``second``, an untied model of
    another seed, the ceilings of that; ``maps`` adds where the tokens lie in each table.

    Needs numpy alone, and memory is bounded whatever the vocabulary, unless a file of ``text`` is given: then
    transformers runs the model on it. Raises `UnreadableError` where there is no input table of floats, or the model or
    its tokenizer cannot be loaded; `RefusedError` where a text says nothing about the class, and where an alignment
    has no meaning.
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
        if against is None and second is None and not maps:
            return report(findings)
        from tieconv.analysis.alignment.models import extended

        return extended(report(findings), findings, against, second, maps=maps)
