"""The index declares another total size than the shards have.

## What it does
Compares `metadata.total_size` of the index with the bytes of all tensors in the shards.

## Why it matters
Model pages compute the parameter count from it, and some loaders the memory that they need. After
a head was dropped or added it is the first number to be wrong.

## Example

    warning IDX004: the index declares total_size 128, the shards hold 256:
    parameter counts derived from it are wrong

## How to fix
`tieconv reindex` writes the right number, as do the commands that change a shard.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.total-size"):
        yield RULE.finding(
            f"{caution.message}: parameter counts derived from it are wrong",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=True),
        )


RULE = Rule("IDX004", "total-size", Level.WARNING, __doc__ or "", find)
