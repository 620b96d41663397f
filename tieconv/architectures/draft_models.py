"""Draft models for speculative decoding: small ones that borrow from the model that they draft for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

WHY = "Untied: a draft model takes its embedding, and often its head, from its target model."
_MAPS = frozenset({"d2t", "t2d"})
"""EAGLE-3 maps its own, smaller vocabulary to the target's with these tensors."""
_FUSIONS = frozenset({"fc.weight", "model.fc.weight"})
"""Joins the target's hidden state with the draft's; vision-language models named Eagle have no such layer."""


def is_draft(config: Mapping[str, object], names: Collection[str]) -> bool:
    """Return whether config or tensors are of an EAGLE draft (SpecForge, EAGLE, vLLM speculators), or of Medusa's."""
    listed = config.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    fused = any("eagle" in name.lower() for name in classes) and not _FUSIONS.isdisjoint(names)
    counted = any(type(config.get(key)) is int for key in ("draft_vocab_size", "medusa_num_heads"))
    return fused or counted or _MAPS.issubset(names) or _is_first_eagle(names)


def _is_first_eagle(names: Collection[str]) -> bool:
    """EAGLE-1 and 2 keep the target's class in the config: a fused layer that no norm follows, and no head."""
    ends = ("norm.weight", "model.norm.weight", "lm_head.weight")
    return not _FUSIONS.isdisjoint(names) and "embed_tokens.weight" in names and not any(end in names for end in ends)
