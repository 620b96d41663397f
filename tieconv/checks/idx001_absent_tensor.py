"""The index names tensors that the shards do not hold.

## What it does
Reports names in the `weight_map` of the index whose shard is there and does not hold them.

## Why it matters
A loader opens the shard for that name and stops, or leaves the parameter random. The usual cause is a
head that was dropped from its shard and not from the index.

## Example
An index that still names `lm_head.weight`:

    error IDX001: the index names lm_head.weight, and the shard does not hold
    it: loaders that follow the index stop there

## How to fix
`tieconv reindex` rebuilds the index from the shard headers. Where the tensor should be there, fetch its shard
instead. Other commands that write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.absent-tensor"):
        yield RULE.finding(
            f"the index names {evidence.listed(caution.tensors)}, and the shard does not hold "
            f"{evidence.verb(caution.tensors, 'it', 'them')}: loaders that follow the index stop there",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=False),
        )


RULE = Rule("IDX001", "absent-tensor", Level.ERROR, __doc__ or "", find)
