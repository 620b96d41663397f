"""The format's own reader refuses a file of the model.

## What it does
Reports a file that tieconv can read, but that the reader of its format refuses. These readers are safetensors,
`torch.load` with `weights_only=True`, `onnx.checker`, a session of ONNX Runtime, and the `gguf` package.

## Why it matters
The model does not load. If one tensor has a dtype that safetensors does not know, safetensors refuses the whole file.
transformers loads torch files with `weights_only=True`. ONNX Runtime refuses a graph with a cycle.

## Example
A tensor of the dtype `F3`:

    error FMT001: safetensors refuses model.safetensors: it does not know the
    dtype F3 of model.extra

## How to fix
Save the file again with the tool that wrote it. For a training checkpoint, save only `model.state_dict()`. A newer
release of the reader may know a newer dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import REFUSED_BY_READER
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each reason of a refusal."""
    for caution in evidence.cautions(inspection, REFUSED_BY_READER):
        yield RULE.finding(caution.message, caution.tensors)


RULE = Rule("FMT001", "reader-refuses", Level.ERROR, __doc__ or "", find)
