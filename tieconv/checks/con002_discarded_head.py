"""A loader discards a stored head, or a stored embedding, that holds different values.

## What it does
Reports loaders that will replace a stored tensor with another tensor that differs from it. tieconv predicts only the
loaders that you ask for (`--consumers`, `--for`).

## Why it matters
The loader prints nothing, the text stays fluent, and the trained values are lost.

## Example
`"tie_word_embeddings": true`, a head that differs in one row, asked for mlx-lm:

    error CON002: mlx-lm 0.32: the loader replaces lm_head.weight by
    model.embed_tokens.weight without an error

## How to fix
`tieconv set-tie false` declares the model untied at every level, so loaders use the stored head. For an FSMT whose
config already says untied, transformers 4 replaces the decoder's table with the head. No file can prevent that: load
such a model with transformers 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.DISCARDED):
        yield RULE.finding(predictions.message(group), group[0].tensors)


RULE = Rule("CON002", "loader-discards-head", Level.ERROR, __doc__ or "", find)
