"""A loader refuses the model.

## What it does
Reports loaders that will end with an error. They need a name that is not stored, do not know a stored name, or do not
read the format. tieconv predicts only the loaders that you ask for (`--consumers`, `--for`).

## Why it matters
A release that works in transformers may still fail in your server.

## Example
A tied StableLM, which stores only the embedding, asked for llama.cpp:

    error CON003: llama.cpp 2026: lm_head.weight is not stored, and the
    architecture needs an output.weight

## How to fix
tieconv plans its commands and predicts the loaders of each result. The finding names the command that helps, or says
that no command does. `tieconv untie --keep-flag` stores the head for a loader that needs it, and the config stays tied.
`tieconv retie` drops a copy that a loader does not expect. `tieconv convert --to safetensors` writes the format that
most loaders read. `tieconv reindex --add-format` adds the metadata entry that transformers 4 needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checks import predictions
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each set of tensors."""
    for group in predictions.grouped(inspection, Outcome.ERROR):
        yield RULE.finding(predictions.message(group), group[0].tensors)


RULE = Rule("CON003", "loader-refuses", Level.ERROR, __doc__ or "", find)
