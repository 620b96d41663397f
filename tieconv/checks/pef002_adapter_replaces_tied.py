"""An adapter brings a whole copy of one of two matrices that its base model ties.

## What it does
Notes a PEFT adapter whose `modules_to_save` hold the embedding or the head of a base model that ties them, or
that is not here.

## Why it matters
The copy was trained apart, so the merged model is an untied one. peft 0.21 sets the flag to false when it
merges; a merge by other means that leaves the flag true loses one of the two on reload, and the model then
repeats one token.

## Example
An adapter of a tied Llama with `"modules_to_save": ["lm_head"]`:

    note PEF002: the adapter brings its own lm_head, which its base model ties:
    the merged model must store both matrices and be declared untied

## How to fix
After merging run `tieconv inspect` on the result: TIE001 says where the flag still is true, and
`tieconv set-tie false` corrects it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    adapter = inspection.checkpoint.adapter
    if adapter is None or adapter.tied:
        return
    modules = adapters.in_pair(adapters.replaced(inspection), inspection.base)
    if modules:
        which = "which its base model ties" if inspection.base else "which its base model (not here) may tie"
        yield RULE.finding(
            f"the adapter brings its own {evidence.listed(modules)}, {which}: the merged model must store both "
            "matrices and be declared untied"
        )


RULE = Rule("PEF002", "adapter-replaces-tied", Level.NOTE, __doc__ or "", find)
