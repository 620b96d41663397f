"""The config of a DeBERTa selects another prediction head than the stored one.

## What it does
Reports a DeBERTa for masked language modelling whose only head is not the selected one. With `legacy` true or absent,
transformers reads `cls.predictions.*`. With `legacy` false, it reads `lm_predictions.lm_head.*`.

## Why it matters
transformers has two heads for these models and selects one with `legacy`, which is true by default. It reports the
tensors of the other head as unexpected and fills the head with random values. So the model predicts nonsense. The
weights that Microsoft published have the newer names.

## Example
A DeBERTa v2 as Microsoft published it:

    error HED001: The prediction head is stored as
    lm_predictions.lm_head.dense.weight, which transformers reads only with
    "legacy": false. Without it, transformers fills the head with random values.

## How to fix
Set `legacy` in config.json to the value in the message. The tensors keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

_HEADS = {True: "cls.predictions.", False: "lm_predictions.lm_head."}
_TYPES = frozenset({"deberta", "deberta-v2"})


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    config = inspection.checkpoint.config_values
    if str(config.get("model_type")) not in _TYPES or not inspection.family.architecture.endswith("ForMaskedLM"):
        return
    legacy = bool(config.get("legacy", True))
    stored = {value: _first(inspection, start) for value, start in _HEADS.items()}
    unread_head = stored[not legacy]
    if unread_head and not stored[legacy]:
        value = str(not legacy).lower()
        yield RULE.finding(
            f"The prediction head is stored as {evidence.listed([unread_head])}, which transformers reads only with "
            f'"legacy": {value}. Without it, transformers fills the head with random values.',
            (unread_head,),
        )


def _first(inspection: Inspection, start: str) -> str | None:
    return next((name for name in inspection.checkpoint.tensors if name.startswith(start)), None)


RULE = Rule("HED001", "other-head", Level.ERROR, __doc__ or "", find)
