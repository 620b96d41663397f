"""Refuse models whose cache holds other states than keys and values, before any weight is read."""

from __future__ import annotations

from inspect import signature
from itertools import zip_longest
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
    ``export.cache``, which says the layer and its kind.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    config = load_config(directory)
    where = _layer_state(transformers, config) or _class_state(getattr(transformers, name, None))
    if where:
        raise RefusedError(
            f"{shown(source)}: {shown(name)} keeps another state than keys and values {where}, "
            "which export does not support",
            "export with transformers.exporters, then run tieconv dedup on the result",
            "export.cache",
        )


def _layer_state(transformers: Any, config: Any) -> str:
    """Return the first layer with another state, with its kind and cache class; empty if there is none."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    for index, (kind, layer) in enumerate(zip_longest(kinds, _cache_layers(transformers, config), fillvalue="")):
        cache = "" if layer in _LAYERS else layer
        if cache or kind in _STATES:
            return f"in layer {index} ({', '.join(filter(None, (kind, cache)))})"
    return ""


def _cache_layers(transformers: Any, config: Any) -> list[str]:
    """Return the class of each layer's cache; empty for a config for which transformers builds no cache."""
    try:
        return [type(layer).__name__ for layer in transformers.DynamicCache(config=config).layers]
    except (AttributeError, TypeError, ValueError):
        return []  # the loaded model decides


def _class_state(cls: Any) -> str:
    """Return the argument with the state of a class that cannot go back to an earlier token; empty for others."""
    if getattr(cls, "_is_stateful", False) is not True:
        return ""
    accepted = signature(cls.forward).parameters
    argument = next((name for name in ("cache_params", "state") if name in accepted), "past_key_values")
    return f"in every layer (argument {argument})"
