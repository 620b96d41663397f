"""Find a tie flag under another name, which a config class prefers to the usual one."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.architectures.class_table import exceptions

_NAME = "tie_embedding"


def own_flag(config: Mapping[str, object]) -> str | None:
    """Return the key that decides instead of ``tie_word_embeddings``, or ``None``."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not isinstance(config.get(_NAME), bool):
        return None
    return _NAME if exceptions("flag").get(kind) == _NAME else None
