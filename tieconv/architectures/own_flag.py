"""A tie flag under another name, which a config class puts before the usual one."""

from __future__ import annotations

from collections.abc import Mapping

_NAME = "tie_embedding"
_TYPES = frozenset({"lfm2", "lfm2_moe", "lfm2_vl"})
"""Liquid's configs: ``tie_word_embeddings = kwargs.pop("tie_embedding", tie_word_embeddings)`` in configuration_lfm2.py
of transformers 5.23, ``kwargs.get`` in 4.57."""


def own_flag(config: Mapping[str, object]) -> str | None:
    """The name of the flag that decides at this level instead of ``tie_word_embeddings``; ``None`` where that does."""
    kind = config.get("model_type")
    return _NAME if isinstance(kind, str) and kind in _TYPES and isinstance(config.get(_NAME), bool) else None
