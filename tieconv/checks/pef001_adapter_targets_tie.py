"""An adapter changes one of two matrices that its base model ties.

## What it does
Reports a PEFT adapter with low-rank parts for the tied embedding or head of a base model. It is a warning if tieconv
cannot read the base model, which may be untied. The rule skips adapters that were trained with `ensure_weight_tying`,
because they keep the pair equal.

## Why it matters
While the adapter is loaded, the head and the embedding have different parts. A merge adds both parts to the one matrix.
The merged model generates garbage, and nothing can recover the training from the merged file. PEFT only prints a
warning when it creates the adapter.

## Example
An adapter that targets `lm_head` of a tied Llama:

    error PEF001: The adapter changes lm_head, but its base model ties
    lm_head.weight to model.embed_tokens.weight. A merge adds the change to the
    matrix that both use. Merge the adapter into the untied model instead.

## How to fix
Untie the base model first. Then load and merge the adapter there: `PeftModel.from_pretrained(untied, ADAPTER)`. The
config of the adapter still contains the tied model, so the finding stays. The logits stay the same except for rounding
(measured with peft 0.21: a difference of at most 5e-7).
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
    """Yield at most one finding."""
    adapter = inspection.checkpoint.adapter
    if adapter is None or adapter.tied:
        return
    modules = adapters.in_pair(adapters.changed(inspection), inspection.base)
    if not modules:
        return
    start = f"The adapter changes {evidence.listed(modules)}, but its base model"
    tie = adapters.tied_pair(inspection.base)
    if tie is None or inspection.base is None:
        yield RULE.finding(f"{start} {_absent(adapter)}", level=Level.WARNING)
        return
    others = evidence.listed(member.name for member in tie.members if member.name != tie.canonical)
    yield RULE.finding(
        f"{start} ties {others} to {evidence.listed([tie.canonical])}. A merge adds the change to the matrix that "
        "both use. Merge the adapter into the untied model instead.",
        remedy=remedies.untie(inspection.base, safe=True),
    )


def _absent(adapter: Adapter) -> str:
    where = f"{shown(adapter.base)} was not read" if adapter.base else "is unknown"
    kind = f" (its class is {shown(adapter.base_class)})" if adapter.base_class else ""
    return f"{where}{kind}. If the base model is tied, untie it before the merge."


RULE = Rule("PEF001", "adapter-targets-tie", Level.ERROR, __doc__ or "", find)
