"""The directory holds weight files that the model does not use.

## What it does
Notes safetensors files that are neither in the index nor the single weight file. It is a warning if such a file stores
a name of the model with another shape or type. For the tied tensors the rule also compares the bytes, and with
`--depth full` for all tensors. A variant (`model.fp32.safetensors`) is meant to differ, so it stays a note.

## Why it matters
Loaders that take every `*.safetensors` file read these files too, and copies of the model include them. Often they are
there on purpose: an adapter, an original format, a draft model.

## Example

    note IDX005: The model does not use 1 weight file: adapter_model.safetensors

## How to fix
Move the file into a subdirectory. Delete it if it is left from an earlier save.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "index.orphan"):
        files = {file.name for file in inspection.checkpoint.orphans if not _VARIANT.fullmatch(file.name)}
        shadows = (shadow for shadow in inspection.shadows if shadow.differs and shadow.file in files)
        different = tuple(dict.fromkeys(shadow.name for shadow in shadows))
        message = evidence.capital(caution.message)
        if different:
            has = evidence.clause(different, "has", "have")
            message = f"{message}. {has} other values there."
        yield RULE.finding(
            message,
            different[:4],
            level=Level.WARNING if different else None,
        )


_VARIANT = re.compile(r"model\.\w+(-\d{5}-of-\d{5})?\.safetensors|model-\d{5}-of-\d{5}\.\w+\.safetensors")
"""Names that `save_pretrained(variant=...)` writes. Loaders read them only if `variant` selects them."""


RULE = Rule("IDX005", "orphan-file", Level.NOTE, __doc__ or "", find)
