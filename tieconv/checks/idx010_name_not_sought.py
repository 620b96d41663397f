"""The weights have a name that loaders do not look for.

## What it does
Reports a model directory whose only weights, or whose only index, have an unusual name. The usual names are
`model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin` and `pytorch_model.bin.index.json`. The rule
also reports a `transformers_weights` in the config that is not a safetensors file or index of the directory.

## Why it matters
transformers looks only for these names, and fails with an `OSError` if it finds none of them. A browser that saved
`model (1).safetensors` is enough. vLLM and others read any `*.safetensors`. mlx-lm and llama.cpp read any
`model*.safetensors`. So one directory loads in one loader and not in another.

## Example

    error IDX010: transformers does not look for model (1).safetensors, so it
    finds no weights. Other loaders may find none either.

## How to fix
`tieconv convert` writes the model under the usual names, in the same format. For a single file, you can also rename it.
A file such as `model.fp16.safetensors` is a variant: load it with `variant="fp16"`. For numbered shards without an
index see [IDX006](#idx006-no-index). Remove a wrong `transformers_weights` from the config.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.draft_models import is_draft
from tieconv.checkpoint.files.model_files import WEIGHTS_KEY, Checkpoint, Layout
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import remedies
from tieconv.checks.interface import Rule
from tieconv.loaders.transformers.opened_file import opened
from tieconv.text import shown

_OF_DIFFUSERS = "diffusion_pytorch_model"
"""The name that diffusers looks for, beside a config.json in its format."""


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    checkpoint = inspection.checkpoint
    if checkpoint.layout is Layout.FILE or checkpoint.format not in ("safetensors", "torch") or not checkpoint.config:
        return
    config = inspection.config
    if not config.architectures and not config.model_type:
        return  # the config is not for transformers
    if is_draft(checkpoint.config_values, checkpoint.tensors):
        return  # other loaders read it, some under a special name
    named = checkpoint.config_values.get(WEIGHTS_KEY)
    if opened(checkpoint) is not None:
        return
    if named is not None:
        yield RULE.finding(
            f"The config sets {WEIGHTS_KEY} to {shown(named)}, but the directory has no safetensors file or index "
            "with that name"
        )
    elif checkpoint.entry and not _is_of_diffusers(checkpoint):
        yield RULE.finding(
            f"transformers does not look for {shown(checkpoint.entry)}, so it finds no weights. Other loaders may "
            "find none either.",
            remedy=remedies.convert(inspection),
        )


def _is_of_diffusers(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.entry) and str(checkpoint.entry).startswith(_OF_DIFFUSERS)


RULE = Rule("IDX010", "name-not-sought", Level.ERROR, __doc__ or "", find)
