"""A loader does not use a stored head bias.

## What it does
Reports loaders whose model, as predicted, takes no values from a head bias that the file holds. It is an error
where the bias is known not to be zero, a warning where it was not read. Only loaders that were asked for are
predicted (`--consumers`, `--for`).

## Why it matters
A trained bias moves each logit; without it the most likely token changes (C14, C18).

## Example
An untied BERT with the outer name of its bias alone, asked for transformers 5.x:

    error CON004: transformers 5.x: cls.predictions.bias is not used

## How to fix
`tieconv bias unify` writes both names of a pair. Where the class has no bias at all, the model needs another class,
or another loader.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import BiasState, Finding, Inspection, Level, Remedy
from tieconv.checkpoint.prediction import Prediction
from tieconv.checks import evidence, predictions, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each set of biases."""
    found: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.dropped:
            found.setdefault(prediction.dropped, []).append(prediction)
    for dropped, alike in found.items():
        verb = evidence.clause(dropped, "is", "are")
        message = f"{predictions.loaders(alike)}: {verb} not used"
        yield RULE.finding(message, dropped, level=_level(inspection), remedy=_remedy(inspection, dropped))


def _level(inspection: Inspection) -> Level:
    bias = inspection.head.output_bias
    return Level.ERROR if bias is not None and bias.state is BiasState.NONZERO else Level.WARNING


def _remedy(inspection: Inspection, dropped: tuple[str, ...]) -> Remedy | None:
    names = [name for tie in inspection.ties for member in tie.members if (name := member.name) in dropped]
    stored = [member for tie in inspection.ties for member in tie.stored_members if member.name in names]
    if not stored or any(len(tie.stored_members) > 1 for tie in inspection.ties if stored[0] in tie.members):
        return None
    return remedies.bias(inspection, "unify", safe=False)


RULE = Rule("CON004", "loader-drops-bias", Level.ERROR, __doc__ or "", find)
