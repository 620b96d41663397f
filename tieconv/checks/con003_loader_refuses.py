"""A loader stops at the model.

## What it does
Reports loaders that, as predicted, end with an error: they need a name that is not stored, meet one that they do
not know, or do not read the format. Only loaders that were asked for are predicted (`--consumers`, `--for`).

## Why it matters
A release that is right for transformers may still not load where it is to be served.

## Example
A tied StableLM, which stores the embedding alone, asked for llama.cpp:

    error CON003: llama.cpp 2026: lm_head.weight is not stored, and the
    architecture needs an output.weight

## How to fix
`tieconv untie --keep-flag` writes the head for a loader that needs it, and leaves the config tied. `tieconv retie`
drops a copy that a loader does not expect. `tieconv convert --to safetensors` writes the format that most loaders
read, `tieconv reindex --add-format` what transformers 4 looks for in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome, Prediction
from tieconv.checks import evidence, predictions, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.ERROR):
        remedy = _remedy(inspection, group[0])
        yield RULE.finding(predictions.message(group), group[0].tensors, remedy=remedy)


def _remedy(inspection: Inspection, prediction: Prediction) -> Remedy | None:
    tie = evidence.head_tie(inspection)
    if tie is None or prediction.tensors != (tie[1].name,) or tie[0].consistent is not True:
        return None
    if not tie[1].stored:
        return remedies.untie(inspection, ("--keep-flag", ""), safe=True)
    return remedies.retie(inspection, safe=True)


RULE = Rule("CON003", "loader-refuses", Level.ERROR, __doc__ or "", find)
