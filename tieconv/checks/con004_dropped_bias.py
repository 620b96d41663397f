"""A loader does not use a stored head bias.

## What it does
Reports loaders that will not use a stored head bias. It is an error if the bias is not zero. It is a warning if tieconv
did not read the bias, or if the loader uses its other name. tieconv predicts only the loaders that you ask for
(`--consumers`, `--for`).

## Why it matters
A trained bias changes each logit. Without it the most likely token changes.

## Example
An untied BERT that stores only the outer name of its bias, asked for transformers 5.x:

    error CON004: transformers 5.x does not use cls.predictions.bias

## How to fix
`tieconv bias unify` writes both names of a pair. If the class has no bias, the model needs another class or another
loader.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.head import BiasState
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Prediction
from tieconv.checks import evidence, predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each set of biases."""
    by_biases: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.dropped:
            by_biases.setdefault(prediction.dropped, []).append(prediction)
    for dropped, alike in by_biases.items():
        verb = "does" if len(alike) == 1 else "do"
        message = f"{predictions.loaders(alike)} {verb} not use {evidence.listed(dropped)}"
        yield RULE.finding(message, dropped, level=_level(inspection, dropped))


def _level(inspection: Inspection, dropped: tuple[str, ...]) -> Level:
    bias = inspection.head.output_bias
    known = bias is not None and bias.name in dropped and bias.state is BiasState.NONZERO
    return Level.ERROR if known and not _others(inspection, dropped) else Level.WARNING


def _others(inspection: Inspection, dropped: tuple[str, ...]) -> bool:
    """Return whether another name of the same bias is stored."""
    pairs = [{member.name for member in tie.stored_members} for tie in inspection.ties]
    return any(names & set(dropped) and names - set(dropped) for names in pairs)


RULE = Rule("CON004", "loader-drops-bias", Level.ERROR, __doc__ or "", find)
