"""Recognise draft models for speculative decoding, which use tensors of their target model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

WHY = "Untied: a draft model takes its embedding, and often its head, from its target model."
_MAPS = frozenset({"d2t", "t2d"})
"""EAGLE-3 maps its smaller vocabulary to the target's with these tensors."""
_FUSIONS = frozenset({"fc.weight", "model.fc.weight"})
"""The layer that joins the hidden states of target and draft. Vision-language models named Eagle lack it."""


def is_draft(config: Mapping[str, object], names: Collection[str]) -> bool:
    """Return whether config or tensors are those of an EAGLE (SpecForge, vLLM speculators) or Medusa draft."""
    listed = config.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    fused = any("eagle" in name.lower() for name in classes) and not _FUSIONS.isdisjoint(names)
    counted = any(type(config.get(key)) is int for key in ("draft_vocab_size", "medusa_num_heads"))
    return fused or counted or _MAPS.issubset(names) or _is_first_eagle(names)


def _is_first_eagle(names: Collection[str]) -> bool:
    """Return whether it is EAGLE-1 or 2, whose config has the target's class: fused layer, no norm, no head."""
    ends = ("norm.weight", "model.norm.weight", "lm_head.weight")
    return not _FUSIONS.isdisjoint(names) and "embed_tokens.weight" in names and not any(end in names for end in ends)
