"""A quantised head repeats the quantised embedding, part by part.

## What it does
Reports a quantised head if its scheme and every byte of its parts equal the embedding's. It counts the wasted bytes.
In an untied model this is a note, because nothing is wrong.

## Why it matters
The second copy costs up to half a gigabyte on disk. In a tied model it can also stop a loader. mlx-lm fails, because
a tied model has no parameters for the codes of the head.

## Example
`"tie_word_embeddings": true`, and the same codes and scales under both names:

    warning QNT007: every part of the quantised lm_head.weight equals that of
    model.embed_tokens.weight. The copy wastes 1.15 kB.

## How to fix
`tieconv retie` drops every part of the head, and edits the flag and the quantisation config together. It prints which
loaders load the result, and refuses if transformers 5 would load it wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import PairState
from tieconv.checks import evidence, quantised_pairs
from tieconv.checks.interface import Rule
from tieconv.text import size


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    relation = quantised_pairs.relation(inspection)
    if relation is None or relation.state is not PairState.EQUAL or not relation.bytes_wasted:
        return
    embedding, head = quantised_pairs.names(inspection)
    tied = inspection.config.effective
    untied = "" if tied else f" {evidence.capital(evidence.says(inspection, False))}, so nothing is wrong."
    yield RULE.finding(
        f"every part of the quantised {evidence.listed([head])} equals that of {evidence.listed([embedding])}. "
        f"The copy wastes {size(relation.bytes_wasted)}.{untied}",
        (embedding, head),
        level=None if tied else Level.NOTE,
        remedy=quantised_pairs.remedy(inspection, "retie", "MLX"),
    )


RULE = Rule("QNT007", "quantised-copy", Level.WARNING, __doc__ or "", find)
