"""A loader fills the head or the embedding with random values.

## What it does
Reports loaders that will find no stored values for the output head or the input embedding. They fill the parameter with
random values or do not initialize its memory. tieconv predicts only the loaders that you ask for (`--consumers`,
`--for`).

## Why it matters
The model loads and generates noise. Most loaders print one line about it at most.

## Example
`tie_word_embeddings` absent, only the embedding stored, asked for transformers 5.x:

    error CON001: transformers 5.x: lm_head.weight is not stored and starts with
    random numbers

## How to fix
tieconv plans its commands and predicts the loaders of each result. The finding names the command that helps: `tieconv
retie` sets the flag at every level, and `tieconv untie --keep-flag` stores the head. If the head was trained
separately, this checkpoint does not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import evidence, predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.RANDOM):
        head = inspection.head.output_head
        if inspection.checkpoint.is_embedder and head is not None and group[0].tensors == (head.name,):
            yield RULE.finding(evidence.without_head(head.name), (head.name,), level=Level.NOTE)
            continue
        yield RULE.finding(predictions.message(group), group[0].tensors)


RULE = Rule("CON001", "loader-random-head", Level.ERROR, __doc__ or "", find)
