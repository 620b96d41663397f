"""Models whose cache is no keys and values, told by class and config before a weight is read."""

from __future__ import annotations

from typing import Any

from tieconv.errors import RefusedError
from tieconv.reference import load_config
from tieconv.reference.packages import need
from tieconv.text import shown

_STATES = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
"""Names that transformers' configs give to layers with a state of their own (`cache_utils`, and older configs)."""


def check_cache(name: str, directory: str, source: str) -> None:
    """Refuse the class ``name`` where it keeps a state between tokens that a graph would have no input for.

    ``directory`` holds its config, ``source`` is what the user calls it. Raises `RefusedError`, code ``export.cache``.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    why = _why(getattr(transformers, name, None), load_config(directory))
    if why:
        raise RefusedError(
            f"{shown(source)}: {shown(name)} {why}, and export serves caches of keys and values alone",
            "use transformers.exporters, and tieconv dedup on what it writes",
            "export.cache",
        )


def _why(cls: Any, config: Any) -> str:
    """What it keeps; empty where nothing tells of other things than keys and values."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    state = next((kind for kind in kinds if kind in _STATES), None)
    if state:
        return f"has layers with a state ({state})"
    # transformers' own mark of classes that cannot go back to an earlier token
    return "keeps a recurrent state" if getattr(cls, "_is_stateful", False) is True else ""
