"""A torch file holds more than the tensors of a model.

## What it does
Notes unusual content of a torch file. It may be a training checkpoint, of which tieconv reads only the model. Some
values may not be tensors, or a wrapper added a prefix to every name. Tensors may repeat stored values (stride 0), or no
tensor of the model uses a storage.

## Why it matters
Loaders of state dicts do not find tensors of a training checkpoint or names with a prefix. A new file would lose the
other content, so most commands that write refuse the file.

## Example
A checkpoint of a training run:

    note STO005: The file is a training checkpoint; tieconv reads the tensors
    under state_dict; the file also holds epoch

## How to fix
`tieconv convert FILE --to safetensors -o OUT` writes the model of a training checkpoint. If several keys hold tensors,
save the right one: `torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)`.
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
    """Yield one finding for each kind of unusual content in each file."""
    for code in _CODES:
        for caution in evidence.cautions(inspection, code):
            yield RULE.finding(evidence.capital(caution.message))


RULE = Rule("STO005", "not-only-weights", Level.NOTE, __doc__ or "", find)
