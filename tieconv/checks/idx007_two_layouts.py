"""The directory holds a single weight file and an index.

## What it does
Reports a directory that holds both `model.safetensors` and `model.safetensors.index.json`.

## Why it matters
transformers reads the single file, and other loaders read the shards. If one of them is left from an earlier save, they
are different models. The findings of tieconv are about the single file.

## Example

    warning IDX007: The directory holds both model.safetensors and
    model.safetensors.index.json: transformers reads the single file, other
    loaders read the shards

## How to fix
Remove the one that does not belong to the model. Until then, commands that write refuse the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "layout.ambiguous"):
        yield RULE.finding(evidence.capital(caution.message), caution.tensors)


RULE = Rule("IDX007", "two-layouts", Level.WARNING, __doc__ or "", find)
