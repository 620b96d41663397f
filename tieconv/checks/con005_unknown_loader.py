"""Nothing predicts what a loader does with the model.

## What it does
Lists the loaders that you asked for (`--consumers`, `--for`) and that tieconv cannot predict. Either tieconv has no
measurement of the class in that loader, or only the model's own code defines the class.

## Why it matters
No finding for a loader does not mean that the loader works.

## Example
A tied BERT, asked for text-generation-inference:

    note CON005: text-generation-inference 3.x: tieconv has no measurement of
    text-generation-inference for BertForMaskedLM

## How to fix
Load the model with that loader and compare its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for group in predictions.grouped(inspection, Outcome.UNKNOWN):
        if len(group) == 1:
            yield RULE.finding(predictions.message(group))
        else:
            yield RULE.finding(f"tieconv cannot predict what {predictions.loaders(group)} do with this model")


RULE = Rule("CON005", "loader-unknown", Level.NOTE, __doc__ or "", find)
