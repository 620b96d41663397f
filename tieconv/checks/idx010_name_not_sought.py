"""The weights have a name that loaders do not look for.

## What it does
Reports a model directory whose only weights, or whose only index, have another name than `model.safetensors`,
`model.safetensors.index.json`, `pytorch_model.bin` or `pytorch_model.bin.index.json`, and one whose config names under
`transformers_weights` what is no safetensors file or index of the directory. A name that the config gives and the
directory holds is in order.

## Why it matters
transformers looks for these names alone, and stops with an `OSError` where it finds none of them: a browser that saved
`model (1).safetensors` is enough. vLLM and others take any `*.safetensors`, mlx-lm and llama.cpp any
`model*.safetensors`, so that the same directory loads in one place and not in the other.

## Example

    error IDX010: transformers does not look for model (1).safetensors: it finds
    no weights here, and other loaders may find none either

## How to fix
`tieconv convert` writes the model under the names that loaders look for, in the format that it has; of one file,
renaming it does the same. A file such as `model.fp16.safetensors` is a variant, which is loaded with
`variant="fp16"`. Numbered shards without an index are [IDX006](#idx006-no-index). A wrong `transformers_weights` is
to be taken out of the config.
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
"""What diffusers looks for, beside a config.json of its own."""


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    checkpoint = inspection.checkpoint
    if checkpoint.layout is Layout.FILE or checkpoint.format not in ("safetensors", "torch") or not checkpoint.config:
        return
    config = inspection.config
    if not config.architectures and not config.model_type:
        return  # no config of transformers
    if is_draft(checkpoint.config_values, checkpoint.tensors):
        return  # other loaders read it, some under a name of their own
    named = checkpoint.config_values.get(WEIGHTS_KEY)
    if opened(checkpoint) is not None:
        return
    if named is not None:
        yield RULE.finding(
            f"the config names {shown(named)} as {WEIGHTS_KEY}, and no safetensors file or index here has that name"
        )
    elif checkpoint.entry and not _is_of_diffusers(checkpoint):
        yield RULE.finding(
            f"transformers does not look for {shown(checkpoint.entry)}: it finds no weights here, and other loaders "
            "may find none either",
            remedy=remedies.convert(inspection),
        )


def _is_of_diffusers(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.entry) and str(checkpoint.entry).startswith(_OF_DIFFUSERS)


RULE = Rule("IDX010", "name-not-sought", Level.ERROR, __doc__ or "", find)
