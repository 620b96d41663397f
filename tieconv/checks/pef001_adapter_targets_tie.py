"""An adapter changes one of two matrices that its base model ties.

## What it does
Reports a PEFT adapter with low-rank parts for the embedding or the head of a base model that ties the two.
Where the base model is not here it is a warning, since it may be untied. Adapters that were trained with
`ensure_weight_tying` keep the pair equal and are left alone.

## Why it matters
While the adapter is loaded, the head and the embedding differ by their own parts. Merging adds both parts to
the one matrix that both use: the merged model answers garbage, and its training cannot be recovered from the
merged file. PEFT only warns, when the adapter is made.

## Example
An adapter that targets `lm_head` of a tied Llama:

    error PEF001: the adapter changes lm_head, and its base model ties
    lm_head.weight to model.embed_tokens.weight: merging would add the change to
    the matrix that both use; merge into its untied copy instead

## How to fix
Untie the base model first and load and merge the adapter there (`PeftModel.from_pretrained(untied, ADAPTER)`): its own
config goes on naming the tied model, and the finding stays with it. The logits stay the same to rounding (measured with
peft 0.21: a difference of at most 5e-7).
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.model_files import Adapter
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    adapter = inspection.checkpoint.adapter
    if adapter is None or adapter.tied:
        return
    modules = adapters.in_pair(adapters.changed(inspection), inspection.base)
    if not modules:
        return
    start = f"the adapter changes {evidence.listed(modules)}, and its base model"
    tie = adapters.tied_pair(inspection.base)
    if tie is None or inspection.base is None:
        yield RULE.finding(f"{start} {_absent(adapter)}", level=Level.WARNING)
        return
    others = evidence.listed(member.name for member in tie.members if member.name != tie.canonical)
    yield RULE.finding(
        f"{start} ties {others} to {evidence.listed([tie.canonical])}: merging would add the change to the "
        "matrix that both use; merge into its untied copy instead",
        remedy=remedies.untie(inspection.base, safe=True),
    )


def _absent(adapter: Adapter) -> str:
    where = f"{shown(adapter.base)} is not here" if adapter.base else "is not named"
    kind = f" (its class is {shown(adapter.base_class)})" if adapter.base_class else ""
    return f"{where}{kind}: if that ties its embedding and its head, untie it before merging"


RULE = Rule("PEF001", "adapter-targets-tie", Level.ERROR, __doc__ or "", find)
