"""The config says that the output head is quantised, but the file stores no codes for it.

## What it does
Reports a head that the quantisation config includes, although it is float or tied to floats. The entry may be a
target of compressed-tensors, or a true `lm_head`. A list of modules to skip may lack the head.

## Why it matters
Loaders follow the config and build a quantised head. It has no codes then. transformers 5 fails, or computes the logits
from uninitialised memory. Some loaders of GPTQ and AWQ look for stored codes, and load the floats.

## Example
A tied model quantised by bitsandbytes, with `"llm_int8_skip_modules": ["none"]`:

    error QNT009: the quantisation config includes lm_head.weight
    (llm_int8_skip_modules: none), but no codes are stored for it.
    transformers builds a quantised head and finds no codes: it fails.

## How to fix
`tieconv set-tie auto` lists the head among the modules that are not quantised. It keeps every tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.quantised import LISTING_METHODS, lists_float_head
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.loaders.evidence.quantised_cells import TRANSFORMERS
from tieconv.loaders.registry import consumer
from tieconv.text import shown

_FAULTS = (Outcome.ERROR, Outcome.RANDOM, Outcome.DISCARDED)


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. TIE003 reports an untied head that is not stored."""
    declared, head = inspection.quantisation, inspection.family.output_head
    view = inspection.head.output_head
    absent = view is None or not view.stored
    if declared is None or head is None or inspection.family.tying is not Tying.CAN or not lists_float_head(inspection):
        return
    if absent and not inspection.config.effective:
        return
    entry = f" ({shown(declared.head.entry)})" if declared.head.entry else ""
    answer = consumer(*TRANSFORMERS).predict(inspection)
    fails = answer.outcome in _FAULTS and answer.detail.startswith("transformers")
    follows = f"{evidence.capital(answer.detail)}." if fails else "Some loaders build a quantised head there."
    yield RULE.finding(
        f"the quantisation config includes {evidence.listed([head])}{entry}, but no codes are stored for it. {follows}",
        (head,),
        level=evidence.certain(inspection, Level.ERROR if fails else Level.WARNING),
        remedy=remedies.of_parts(inspection, "set-tie auto") if declared.method in LISTING_METHODS else None,
    )


RULE = Rule("QNT009", "float-head-listed", Level.ERROR, __doc__ or "", find)
