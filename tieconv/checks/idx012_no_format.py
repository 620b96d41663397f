"""The metadata of a safetensors file has no format that transformers 4 accepts.

## What it does
Reports safetensors files whose metadata (`__metadata__`) has no `format`, or one that transformers 4 does not accept.
It accepts `pt`, `tf`, `flax` and `mlx`, but not `np` or `PT`. A file without any metadata is valid.

## Why it matters
transformers 4 refuses such a file: "Incompatible safetensors file". For a later shard it prints "does not contain the
valid metadata". transformers 5 and other loaders do not check the entry. `save_file(tensors, path, {"note": "..."})` of
safetensors writes such a file. So does its `save_model` if two names share a tensor.

## Example

    warning IDX012: The metadata of model-00002-of-00002.safetensors has no
    "format" entry. transformers 4 refuses the file.

## How to fix
`tieconv reindex --add-format` writes `"format": "pt"`. Tensors and other metadata stay as they are. A file with one of
the four formats keeps it. If the file has another format, first check that the tensors have the layout of torch.
`check --fix` does not change such a file, because the entry makes a statement about the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding for each format."""
    files_by_format = evidence.refused_formats(inspection) if inspection.checkpoint.config is not None else {}
    for named, files in files_by_format.items():
        refused = evidence.verb(files, "the file", "these files")
        stored_format = f"the format {shown(named)}" if named else 'no "format" entry'
        yield RULE.finding(
            f"The metadata of {evidence.listed(files)} has {stored_format}. transformers 4 refuses {refused}.",
            remedy=remedies.add_format(inspection, safe=not any(files_by_format)),
        )


RULE = Rule("IDX012", "no-format", Level.WARNING, __doc__ or "", find)
