"""Find a tie flag under another name, which a class prefers, or which another program's config has."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.architectures.class_table import exceptions

_NAME = "tie_embedding"
_TRANSFORMERS = (
    "model_type",
    "architectures",
    "transformers_version",
    "auto_map",
    "tie_word_embeddings",
    "text_config",
)
"""Keys of which transformers writes at least one into every config."""
_MAMBA = {"d_model", "n_layer", "ssm_cfg"}
"""Keys of `MambaConfig` in state-spaces/mamba, `mamba_ssm/models/config_mamba.py`, which no other program has."""
_MISTRAL = {"dim", "n_layers", "head_dim", "hidden_dim"}
"""Keys of Mistral's `params.json`, which vLLM reads in `transformers_utils/configs/mistral.py`. Meta's lack two."""


def own_flag(config: Mapping[str, object]) -> str | None:
    """Return the key that decides instead of ``tie_word_embeddings``, or ``None``."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not isinstance(config.get(_NAME), bool):
        return None
    return _NAME if exceptions("flag").get(kind) == _NAME else None


def is_foreign(config: Mapping[str, object]) -> bool:
    """Return whether a config is not one of transformers. Its loader may refuse keys that it does not know."""
    return bool(config) and not any(key in config for key in _TRANSFORMERS)


def foreign_flag(config: Mapping[str, object]) -> tuple[str, bool] | None:
    """Return the tie flag of another program's config, by its key and the value of an absent one; else ``None``."""
    if not is_foreign(config):
        return None
    if config.keys() >= _MAMBA:
        return "tie_embeddings", True
    return ("tied_embeddings", False) if config.keys() >= _MISTRAL else None


def loads_both(config: Mapping[str, object]) -> bool:
    """Return whether the program of this config loads strictly, and wants the name of a tied head too."""
    return is_foreign(config) and config.keys() >= _MAMBA
