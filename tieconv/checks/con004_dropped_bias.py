"""A loader does not use a stored head bias.

## What it does
Reports loaders whose model, as predicted, takes no values from a head bias that the file holds. It is an error
where the bias is known not to be zero, a warning where it was not read, or where another one of the pair is used.
Only loaders that were asked for are predicted (`--consumers`, `--for`).

## Why it matters
A trained bias moves each logit; without it the most likely token changes.

## Example
An untied BERT with the outer name of its bias alone, asked for transformers 5.x:

    error CON004: transformers 5.x: cls.predictions.bias is not used

## How to fix
`tieconv bias unify` writes both names of a pair. Where the class has no bias at all, the model needs another class,
or another loader.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import BiasState, Inspection
from tieconv.checkpoint.prediction import Prediction
from tieconv.checks import evidence, predictions, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each set of biases."""
    by_biases: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.dropped:
            by_biases.setdefault(prediction.dropped, []).append(prediction)
    for dropped, alike in by_biases.items():
        verb = evidence.clause(dropped, "is", "are")
        message = f"{predictions.loaders(alike)}: {verb} not used"
        yield RULE.finding(message, dropped, level=_level(inspection, dropped), remedy=_remedy(inspection, dropped))


def _level(inspection: Inspection, dropped: tuple[str, ...]) -> Level:
    bias = inspection.head.output_bias
    known = bias is not None and bias.name in dropped and bias.state is BiasState.NONZERO
    return Level.ERROR if known and not _others(inspection, dropped) else Level.WARNING


def _others(inspection: Inspection, dropped: tuple[str, ...]) -> bool:
    """Whether another name of the same bias is stored."""
    pairs = [{member.name for member in tie.stored_members} for tie in inspection.ties]
    return any(names & set(dropped) and names - set(dropped) for names in pairs)


def _remedy(inspection: Inspection, dropped: tuple[str, ...]) -> Remedy | None:
    paired = any(member.name in dropped for tie in inspection.ties for member in tie.stored_members)
    if not paired or _others(inspection, dropped):
        return None
    return remedies.bias(inspection, "unify", safe=False)


RULE = Rule("CON004", "loader-drops-bias", Level.ERROR, __doc__ or "", find)
