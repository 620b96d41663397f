"""The shards hold tensors that the index does not name.

## What it does
Reports tensors in the headers of the shards that are missing from the `weight_map` of the index.

## Why it matters
Loaders that follow the index do not see them, loaders that read whole shards do: the same directory
gives two models. A head added to a shard but not to the index is silently random.

## Example
A head that was added to a shard:

    warning IDX002: lm_head.weight is stored and not in the index: loaders that
    follow the index do not see it, others do

## How to fix
`tieconv reindex` rebuilds the index from the shard headers. Other commands that write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.extra-tensor"):
        yield RULE.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored and not in the index: "
            "loaders that follow the index do not see it, others do",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=False),
        )


RULE = Rule("IDX002", "unindexed-tensor", Level.WARNING, __doc__ or "", find)
