"""Refuse models whose cache holds other states than keys and values, before any weight is read."""

from __future__ import annotations

from typing import Any

from tieconv.errors import RefusedError
from tieconv.reference import load_config
from tieconv.reference.packages import need
from tieconv.text import shown

_STATES = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
"""Names of layers with a separate state in transformers' configs (`cache_utils`, and older configs)."""
_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer"})
"""transformers' cache layers that hold keys and values, and nothing else."""


def check_cache(name: str, directory: str, source: str) -> None:
    """Refuse the class ``name`` if it keeps a state between tokens that a graph has no input for.

    ``directory`` holds its config; ``source`` is the model as the user wrote it. Raises `RefusedError` with code
    ``export.cache``.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    config = load_config(directory)
    why = _why(getattr(transformers, name, None), config) or _other_layer(transformers, config)
    if why:
        raise RefusedError(
            f"{shown(source)}: {shown(name)} {why}, but export supports only caches of keys and values",
            "export with transformers.exporters, then run tieconv dedup on the result",
            "export.cache",
        )


def _why(cls: Any, config: Any) -> str:
    """Return what other state the class keeps; empty if it keeps only keys and values."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    state = next((kind for kind in kinds if kind in _STATES), None)
    if state:
        return f"has layers with a state ({state})"
    # transformers marks classes that cannot go back to an earlier token
    return "keeps a recurrent state" if getattr(cls, "_is_stateful", False) is True else ""


def _other_layer(transformers: Any, config: Any) -> str:
    """Return which layer of the model's cache is not a layer of keys and values; empty if all are."""
    try:
        layers = transformers.DynamicCache(config=config).layers
    except (AttributeError, TypeError, ValueError):
        return ""  # a config for which transformers builds no cache: the loaded model decides
    name = next((type(layer).__name__ for layer in layers if type(layer).__name__ not in _LAYERS), "")
    return f"has layers with another cache ({name})" if name else ""
