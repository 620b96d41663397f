"""The index has no metadata.

## What it does
Reports an index without an object named `metadata` beside its `weight_map`.

## Why it matters
transformers reads `metadata` from every index and fails with a `KeyError` if it is missing. Its content does not
matter. Loaders that read only the map do not need it. Usually such an index was written by hand or by a script.

## Example

    error IDX011: model.safetensors.index.json has no metadata, so transformers
    cannot load the model

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
    """Yield at most one finding."""
    index = inspection.checkpoint.index
    if index is not None and stops_at_index(inspection.checkpoint):
        yield RULE.finding(
            f"{shown(index.name)} has no metadata, so transformers cannot load the model",
            remedy=remedies.reindex(inspection, safe=True),
        )


RULE = Rule("IDX011", "no-metadata", Level.ERROR, __doc__ or "", find)
