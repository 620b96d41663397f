"""What a loader does with the model is not known.

## What it does
Names the loaders that were asked for (`--consumers`, `--for`) and of which nothing can be predicted: the source of
their class was not read, or the model is one that only its own code explains.

## Why it matters
Silence about a loader is not its approval.

## Example
A tied BERT, asked for mlx-lm:

    note CON005: mlx-lm 0.32: tieconv has no measurement of mlx-lm 0.32 for
    models of type bert

## How to fix
Load the model with that loader and look.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for group in predictions.grouped(inspection, Outcome.UNKNOWN):
        if len(group) == 1:
            yield RULE.finding(predictions.message(group))
        else:
            yield RULE.finding(f"{predictions.loaders(group)}: what they do with this model is not known")


RULE = Rule("CON005", "loader-unknown", Level.NOTE, __doc__ or "", find)
