"""A loader throws away a stored head, or a stored embedding, that holds values of its own.

## What it does
Reports loaders that, as predicted, replace a stored tensor by another one that differs from it. Only loaders that
were asked for are predicted (`--consumers`, `--for`).

## Why it matters
Nothing is said, the text stays fluent, and what was trained is gone.

## Example
`"tie_word_embeddings": true`, a head that differs in one row, asked for mlx-lm:

    error CON002: mlx-lm 0.32: the loader replaces lm_head.weight by
    model.embed_tokens.weight without an error

## How to fix
`tieconv set-tie false` declares the model untied at every level, so that the stored head is used.
Where the config says so already, as of an FSMT whose decoder's table transformers 4 replaces by the head, nothing that
is written helps: load the model with transformers 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import predictions, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.DISCARDED):
        remedy = remedies.set_untied(inspection, safe=True)
        yield RULE.finding(predictions.message(group), group[0].tensors, remedy=remedy)


RULE = Rule("CON002", "loader-discards-head", Level.ERROR, __doc__ or "", find)
