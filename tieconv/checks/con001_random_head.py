"""A loader starts the head or the embedding with random numbers.

## What it does
Reports loaders that, as predicted, find no stored values for the output embedding or the input embedding and fill
it with random numbers, or leave what the memory held. Only loaders that were asked for are predicted
(`--consumers`, `--for`).

## Why it matters
The model loads and answers noise; most loaders print a line about it at best.

## Example
`tie_word_embeddings` absent, only the embedding stored, asked for transformers 5.x:

    error CON001: transformers 5.x: lm_head.weight is not stored and starts with
    random numbers

## How to fix
Where the model is tied, `tieconv retie` says so at every level of the config that a loader reads. Where the head
was trained apart, it is not in this checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import evidence, predictions, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.RANDOM):
        yield RULE.finding(predictions.message(group), group[0].tensors, remedy=_remedy(inspection))


def _remedy(inspection: Inspection) -> Remedy | None:
    tie = inspection.word_tie
    if tie is None or not tie.stored_members:
        return None
    # What a tied model stores under another name keeps its function under the right one.
    same = tie.declared and not evidence.disputed(inspection)
    return remedies.retie(inspection, safe=same) or remedies.untie(inspection, safe=same)


RULE = Rule("CON001", "loader-random-head", Level.ERROR, __doc__ or "", find)
