"""The index lists tensors that the shards do not hold.

## What it does
Reports names in the `weight_map` of the index whose shard exists but does not hold them.

## Why it matters
A loader opens the shard for that name. Then it fails or fills the parameter with random values. Usually a tool dropped
the head from its shard but not from the index.

## Example
An index that still lists `lm_head.weight`:

    error IDX001: The index lists lm_head.weight, but the shard does not hold
    it. Loaders that use the index fail.

## How to fix
`tieconv reindex` rebuilds the index from the shard headers. If the tensor should exist, fetch its shard instead. Until
then, other commands that write refuse the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "index.absent-tensor"):
        yield RULE.finding(
            f"The index lists {evidence.listed(caution.tensors)}, but the shard does not hold "
            f"{evidence.verb(caution.tensors, 'it', 'them')}. Loaders that use the index fail.",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=False),
        )


RULE = Rule("IDX001", "absent-tensor", Level.ERROR, __doc__ or "", find)
