"""A single weight file and an index stand side by side.

## What it does
Reports a directory that holds both `model.safetensors` and `model.safetensors.index.json`.

## Why it matters
transformers reads the single file, other loaders the shards. If one of them was left behind by an
earlier save, the two are different models. The findings here are about the single file.

## Example

    warning IDX007: the directory holds both model.safetensors and
    model.safetensors.index.json: transformers reads the single file, other
    loaders read the shards

## How to fix
Remove the one that is not meant. Commands that write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "layout.ambiguous"):
        yield RULE.finding(caution.message, caution.tensors)


RULE = Rule("IDX007", "two-layouts", Level.WARNING, __doc__ or "", find)
