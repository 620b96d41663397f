"""A torch file holds more than the tensors of a model.

## What it does
Notes what reading a torch file left out or found out of place: a training checkpoint of which only the
model's part is looked at, values that are no tensors, a prefix that a wrapper put before every name, tensors
that repeat stored values, and storages that belong to no tensor of the model.

## Why it matters
Loaders of plain state dicts do not find the tensors of a training checkpoint, nor names with a wrapper's
prefix; and what else the file holds would be lost when it is written again, so tieconv does not write it.

## Example
A checkpoint of a training run:

    note STO005: the file is a training checkpoint; tieconv reads the tensors
    under state_dict; the file also holds epoch

## How to fix
`tieconv convert FILE --to safetensors -o OUT` writes the model out of a training checkpoint. Where several keys
hold tensors, save the one that you mean: `torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.cautions import SEVERAL, TRAINING
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

_CODES = (TRAINING, SEVERAL, "torch.extra", "torch.prefix", "torch.expanded", "torch.unused")


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each kind of leftover in each file."""
    for code in _CODES:
        for caution in evidence.cautions(inspection, code):
            yield RULE.finding(caution.message)


RULE = Rule("STO005", "not-only-weights", Level.NOTE, __doc__ or "", find)
