"""The shards hold tensors that the index does not list.

## What it does
Reports tensors in the headers of the shards that are missing from the `weight_map` of the index.

## Why it matters
Loaders that use the index do not load these tensors, but loaders that read whole shards do. So one directory gives two
models. If a head is in a shard but not in the index, transformers fills it with random values.

## Example
A head that was added to a shard:

    warning IDX002: lm_head.weight is stored, but the index does not list it.
    Only loaders that read whole shards load it.

## How to fix
`tieconv reindex` rebuilds the index from the shard headers. Until then, other commands that write refuse the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "index.extra-tensor"):
        yield RULE.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored, but the index does not list "
            f"{evidence.verb(caution.tensors, 'it', 'them')}. Only loaders that read whole shards load "
            f"{evidence.verb(caution.tensors, 'it', 'them')}.",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=False),
        )


RULE = Rule("IDX002", "unindexed-tensor", Level.WARNING, __doc__ or "", find)
