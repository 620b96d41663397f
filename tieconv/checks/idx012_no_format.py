"""The metadata of a safetensors file names no format that transformers 4 takes.

## What it does
Reports a model's safetensors files that have metadata (`__metadata__`) without a `format` in it, or with another one
than `pt`, `tf`, `flax` and `mlx` (`np`, `PT`). A file without any metadata is in order.

## Why it matters
transformers 4 refuses such a file: "Incompatible safetensors file", or of a later shard "does not contain the valid
metadata". transformers 5 and other loaders do not look. `save_file(tensors, path, {"note": "..."})` of safetensors
writes one, and its `save_model` does wherever two names share a tensor.

## Example

    warning IDX012: the metadata of model-00002-of-00002.safetensors names no
    format: transformers 4 refuses the file

## How to fix
`tieconv reindex --add-format` writes `"format": "pt"`; tensors and all other metadata stay as they are, and a file that
names one of the four keeps it. Where another one is named, look first whether the tensors are in torch's layout: what
goes is a statement about them, so `check --fix` leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding for each format."""
    files_by_format = evidence.refused_formats(inspection) if inspection.checkpoint.config is not None else {}
    for named, files in files_by_format.items():
        file_or_files = "the file" if len(files) == 1 else "them"
        stored_format = f"the format {shown(named)}" if named else "no format"
        yield RULE.finding(
            f"the metadata of {evidence.listed(files)} {evidence.verb(files, 'names', 'name')} {stored_format}: "
            f"transformers 4 refuses {file_or_files}",
            remedy=remedies.add_format(inspection, safe=not any(files_by_format)),
        )


RULE = Rule("IDX012", "no-format", Level.WARNING, __doc__ or "", find)
