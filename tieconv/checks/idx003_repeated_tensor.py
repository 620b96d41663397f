"""A tensor is stored in more than one shard.

## What it does
Reports names that the headers of two or more shards hold.

## Why it matters
The index names one of them; loaders that read every shard take the last one they open. If the copies
differ, the directory holds two models.

## Example
A second shard that repeats the embedding:

    error IDX003: model.embed_tokens.weight is stored in more than one shard:
    which copy is loaded depends on the loader

## How to fix
Remove the copy that is not meant: usually a shard of an earlier save that was left behind. Commands that
write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.repeated"):
        yield RULE.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored in more than one shard: "
            "which copy is loaded depends on the loader",
            caution.tensors,
        )


RULE = Rule("IDX003", "repeated-tensor", Level.ERROR, __doc__ or "", find)
