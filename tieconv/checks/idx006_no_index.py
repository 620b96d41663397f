"""Numbered shards have no index.

## What it does
Reports a directory of files named `…-00001-of-00002.safetensors` without `model.safetensors.index.json`.

## Why it matters
transformers finds no weights in the directory. Other loaders that need the index do not find them either.

## Example

    error IDX006: The directory holds 2 shards but no
    model.safetensors.index.json, which loaders need to find the weights

## How to fix
`tieconv reindex` writes the index from the shard headers. Until then, other commands that write refuse the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "index.absent"):
        yield RULE.finding(
            f"{evidence.capital(caution.message)} to find the weights",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=True),
        )


RULE = Rule("IDX006", "no-index", Level.ERROR, __doc__ or "", find)
