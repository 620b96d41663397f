"""The index has no metadata.

## What it does
Reports an index without an object named `metadata` beside its `weight_map`.

## Why it matters
transformers reads `metadata` from every index, whatever stands in it, and stops with a `KeyError` where it is missing.
Loaders that read the map alone do not notice. Indexes that were written by hand or by a script are the usual ones.

## Example

    error IDX011: model.safetensors.index.json has no metadata: transformers
    reads it and stops without

## How to fix
`tieconv reindex` rebuilds the index from the shard headers, with its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import remedies
from tieconv.checks.interface import Rule
from tieconv.loaders.transformers.opened_file import stops_at_index
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    index = inspection.checkpoint.index
    if index is not None and stops_at_index(inspection.checkpoint):
        yield RULE.finding(
            f"{shown(index.name)} has no metadata: transformers reads it and stops without",
            remedy=remedies.reindex(inspection, safe=True),
        )


RULE = Rule("IDX011", "no-metadata", Level.ERROR, __doc__ or "", find)
