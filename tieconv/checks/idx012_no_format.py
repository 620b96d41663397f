"""The metadata of a safetensors file names no format.

## What it does
Reports a model's safetensors files that have metadata (`__metadata__`) without a `format` in it. A file without any
metadata is in order, and so is one that names `pt`, `tf`, `flax` or `mlx`.

## Why it matters
transformers 4 refuses such a file: "Incompatible safetensors file", or of a later shard "does not contain the valid
metadata". transformers 5 and other loaders do not look. `save_file(tensors, path, {"note": "..."})` of safetensors
writes one, and its `save_model` does wherever two names share a tensor.

## Example

    warning IDX012: the metadata of model-00002-of-00002.safetensors names no format: transformers 4
    refuses the file

## How to fix
`tieconv reindex --add-format` adds `"format": "pt"`; tensors and all other metadata stay as they are, and a file that
names a format keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    found = evidence.without_format(inspection)
    if found and inspection.checkpoint.config is not None:
        it = "the file" if len(found) == 1 else "them"
        yield RULE.finding(
            f"the metadata of {evidence.listed(found)} {evidence.verb(found, 'names', 'name')} no format: "
            f"transformers 4 refuses {it}",
            remedy=remedies.add_format(inspection),
        )


RULE = Rule("IDX012", "no-format", Level.WARNING, __doc__ or "", find)
