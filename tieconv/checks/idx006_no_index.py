"""Numbered shards stand without an index.

## What it does
Reports a directory of files named `…-00001-of-00002.safetensors` without `model.safetensors.index.json`.

## Why it matters
transformers finds no weights in it, and other loaders that look for the index do not either.

## Example

    error IDX006: the directory holds 2 shards but no
    model.safetensors.index.json, which loaders need to find any weights

## How to fix
`tieconv reindex` writes it from the shard headers. Other commands that write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.absent"):
        yield RULE.finding(
            f"{caution.message} to find any weights",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=True),
        )


RULE = Rule("IDX006", "no-index", Level.ERROR, __doc__ or "", find)
