"""A tensor is stored in more than one shard.

## What it does
Reports names that are in the headers of two or more shards.

## Why it matters
The index lists one of the copies. Loaders that read every shard use the last one that they open. If the copies differ,
the directory holds two models.

## Example
A second shard with the embedding again:

    error IDX003: model.embed_tokens.weight is stored in more than one shard.
    Loaders may load different copies.

## How to fix
Remove the wrong copy, which is usually a shard of an earlier save. Until then, commands that write refuse the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "index.repeated"):
        yield RULE.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored in more than one shard. "
            "Loaders may load different copies.",
            caution.tensors,
        )


RULE = Rule("IDX003", "repeated-tensor", Level.ERROR, __doc__ or "", find)
