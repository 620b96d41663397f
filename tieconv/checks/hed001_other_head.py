"""A DeBERTa's prediction head is stored under the names that its config does not read.

## What it does
Reports a DeBERTa for masked language modelling whose file holds `lm_predictions.lm_head.*` while `legacy` is true
or absent, or `cls.predictions.*` while `legacy` is false, and none of the names that are read.

## Why it matters
transformers has two heads for these models and picks one by `legacy`, true by default. The other one's tensors
are reported as unexpected and the head starts random: the model predicts nonsense. Weights that
Microsoft published have the newer names.

## Example
A DeBERTa v2 as Microsoft published it:

    error HED001: the prediction head is stored as
    lm_predictions.lm_head.dense.weight, which transformers reads only with
    "legacy": false: as it is, the head starts random

## How to fix
Set `legacy` in config.json to the value in the message. The tensors need no other names.
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
    """At most one finding."""
    config = inspection.checkpoint.config_values
    if str(config.get("model_type")) not in _TYPES or not inspection.family.architecture.endswith("ForMaskedLM"):
        return
    legacy = bool(config.get("legacy", True))
    stored = {value: _first(inspection, start) for value, start in _HEADS.items()}
    unread_head = stored[not legacy]
    if unread_head and not stored[legacy]:
        value = str(not legacy).lower()
        yield RULE.finding(
            f"the prediction head is stored as {evidence.listed([unread_head])}, which transformers reads only with "
            f'"legacy": {value}: as it is, the head starts random',
            (unread_head,),
        )


def _first(inspection: Inspection, start: str) -> str | None:
    return next((name for name in inspection.checkpoint.tensors if name.startswith(start)), None)


RULE = Rule("HED001", "other-head", Level.ERROR, __doc__ or "", find)
