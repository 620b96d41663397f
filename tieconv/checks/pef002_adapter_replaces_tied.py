"""An adapter stores a whole copy of one of two matrices that its base model ties.

## What it does
Notes a PEFT adapter whose `modules_to_save` contain the embedding or the head of a base model. The base model ties
them, or tieconv cannot read it.

## Why it matters
The copy was trained separately, so the merged model is untied. peft 0.21 sets the flag to false when it merges. Another
tool may leave the flag true. Then the model loses one of the two on reload and repeats one token.

## Example
An adapter of a tied Llama with `"modules_to_save": ["lm_head"]`:

    note PEF002: The adapter stores a whole lm_head, but its base model ties it.
    The merged model must store both matrices, and its config must say untied.

## How to fix
After the merge, run `tieconv inspect` on the result. If the flag is still true, it reports TIE001, and
`tieconv set-tie false` corrects the flag.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    adapter = inspection.checkpoint.adapter
    if adapter is None or adapter.tied:
        return
    modules = adapters.in_pair(adapters.replaced(inspection), inspection.base)
    if modules:
        which = "its base model ties it" if inspection.base else "its base model, which was not read, may tie it"
        which = which if len(modules) == 1 else f"{which.removesuffix('it')}them"
        yield RULE.finding(
            f"The adapter stores a whole {evidence.listed(modules)}, but {which}. The merged model must store both "
            "matrices, and its config must say untied."
        )


RULE = Rule("PEF002", "adapter-replaces-tied", Level.NOTE, __doc__ or "", find)
