"""The directory holds weight files that the model does not use.

## What it does
Notes safetensors files beside the model that neither the index nor the single-file layout refers to. It is a
warning where such a file stores a name of the model with another shape, type or, for the tied tensors, other
bytes (`--depth full` compares every name). A variant (`model.fp32.safetensors`) is meant to differ, and stays a note.

## Why it matters
Loaders that take every `*.safetensors` file read them too, and they are copied along with the
model. They are often on purpose: an adapter, an original format, a draft model.

## Example

    note IDX005: the model does not use 1 weight file: adapter_model.safetensors

## How to fix
Move the file into a subdirectory, or delete it if it was left behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "index.orphan"):
        files = {file.name for file in inspection.checkpoint.orphans if not _VARIANT.fullmatch(file.name)}
        shadows = (shadow for shadow in inspection.shadows if shadow.differs and shadow.file in files)
        different = tuple(dict.fromkeys(shadow.name for shadow in shadows))
        rest = f"; stored there with other values: {evidence.listed(different)}"
        yield RULE.finding(
            f"{caution.message}{rest if different else ''}",
            different[:4],
            level=Level.WARNING if different else None,
        )


_VARIANT = re.compile(r"model\.\w+(-\d{5}-of-\d{5})?\.safetensors|model-\d{5}-of-\d{5}\.\w+\.safetensors")
"""Names that `save_pretrained(variant=...)` gives the model once more; loaders read them where they are told to."""


RULE = Rule("IDX005", "orphan-file", Level.NOTE, __doc__ or "", find)
