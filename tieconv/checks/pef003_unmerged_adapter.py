"""A model's weights still hold the parts of an adapter.

## What it does
Reports tensors such as `lora_A` and `lora_B` in a checkpoint that is no adapter.

## Why it matters
The file was saved from a wrapped model: the parts were never added to the weights. Loaders report them as
unexpected and ignore them, so the fine-tune is lost without an error; names with `base_model.model.` in front
are not found at all.

## Example
A Llama saved with its adapter inside:

    error PEF003: model.layers.0.q_proj.lora_A.weight and
    model.layers.0.q_proj.lora_B.weight are parts of an adapter that was not
    merged: loaders of the model ignore them

Parts named for an adapter of the config are the architecture's own and no finding: Phi-4-multimodal stores
`lora_A.vision` beside the config's `vision_lora`.

## How to fix
Load the wrapped model again and save what `merge_and_unload()` returns, or save the adapter on its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    if inspection.checkpoint.adapter is not None:
        return
    config = inspection.checkpoint.config_values
    own = {key.removesuffix("_lora") for key, value in config.items() if key.endswith("_lora") and value}
    parts = [name for name in inspection.checkpoint.tensors if _is_part(name) and own.isdisjoint(name.split("."))]
    if parts:
        yield RULE.finding(
            f"{evidence.clause(parts, 'is part', 'are parts')} of an adapter that was not merged: loaders of the "
            "model ignore them",
            parts[:4],
        )


_PARTS = frozenset({"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"})


def _is_part(name: str) -> bool:
    return "lora_" in name and not _PARTS.isdisjoint(name.split("."))


RULE = Rule("PEF003", "unmerged-adapter", Level.ERROR, __doc__ or "", find)
