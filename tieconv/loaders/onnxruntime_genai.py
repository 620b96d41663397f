"""Predict the model builder of onnxruntime-genai: it loads with transformers, then shares a tied head's matrix.

The first entry of ``architectures`` chooses the builder. The flag at the top level of the config, or the default of
its class, decides whether it shares. The embedding then reads the matrix of the head. The builder reads a quantised
checkpoint itself. Without a stored head, it uses the embedding, whatever the flag says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tieconv.architectures.effective_flag import FLAG, text_config
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables, transformers5
from tieconv.loaders.evidence import Pair, head_pair
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, stopped, unknown
from tieconv.text import shown

_LOADER = "onnxruntime-genai"
_READ_BY_NAME = frozenset({"awq", "gptq"})
_UNMEASURED_METHODS = frozenset({"olive", "quark", "quant_auto"})
_NVIDIA = frozenset({"compressed-tensors", "modelopt"})
_stop = partial(Refusal, Cause.CONFIG)


def load(inspection: Inspection) -> Loaded:
    """Return what the exported graph uses, for transformers 5 and a builder without extra options."""
    loaded = transformers5.load(inspection)
    checkpoint = inspection.checkpoint
    if checkpoint.config is None or checkpoint.adapter is not None or checkpoint.format == "gguf":
        return loaded
    names = checkpoint.config_values.get("architectures")
    architecture = str(names[0]) if isinstance(names, list | tuple) and names else ""
    kind = release_tables.kind(_LOADER, architecture)
    refusal = _refused(inspection, architecture, kind)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    pair = head_pair(inspection)
    if pair is not None and _method(inspection) in _READ_BY_NAME:
        loaded = _embedding_for_head(loaded, pair)
    shares = kind != "two tables" and _flag(inspection)
    return _shared(loaded, pair) if shares and pair is not None else loaded


def _refused(inspection: Inspection, architecture: str, kind: str | None) -> Refusal | None:
    if not architecture:
        return _stop("the builder needs architectures in the config")
    if kind is None:
        return _stop(f"onnxruntime-genai 0.18 does not build {shown(architecture)}")
    if kind == "lacks a setting":
        # transformers 5 nests the rope settings of Gemma 3 by the type of the layer, and moves the other one.
        setting = "rope_type" if architecture.startswith("Gemma3") else "global_head_dim"
        return _stop(f"onnxruntime-genai 0.18 reads {setting} of {shown(architecture)}, which transformers 5.23 lacks")
    if kind == "not read":
        return unknown(f"tieconv has no measurement of onnxruntime-genai for {shown(architecture)}")
    method = _method(inspection)
    if method and (refusal := _method_refused(inspection, architecture, method)) is not None:
        return refusal
    config = text_config(inspection)
    layers, rotary = config.get("layer_types"), config.get("no_rope_layers")
    types = set(map(str, layers)) if isinstance(layers, list) else {"mamba"}
    if kind == "attention alone" and types - {"attention", "full_attention"}:
        return _stop(f"onnxruntime-genai 0.18 cannot build the Mamba layers of {shown(architecture)}")
    if isinstance(rotary, list) and 0 in rotary:
        return _stop(f"onnxruntime-genai 0.18 cannot build a layer of {shown(architecture)} without a rotary embedding")
    for name, tensor in inspection.checkpoint.tensors.items():
        linear = not method and ".layers." in name and name.endswith(".weight") and len(tensor.shape) == 2
        if linear and tensor.shape[0] == config.get("vocab_size"):
            return _stop(f"onnxruntime-genai 0.18 takes {shown(name)} for the head: it has a row for each token")
    return None


def _method(inspection: Inspection) -> str:
    settings = inspection.checkpoint.config_values.get("quantization_config")
    return str(settings.get("quant_method", "")) if isinstance(settings, Mapping) else ""


def _method_refused(inspection: Inspection, architecture: str, method: str) -> Refusal | None:
    if method in _NVIDIA:
        if any(name.startswith("model.language_model.") for name in inspection.checkpoint.tensors):
            return unknown(f"tieconv has no measurement of onnxruntime-genai for {shown(method)} of a composite model")
        return _stop(f"onnxruntime-genai 0.18 reads {shown(method)} only from tensors named model.language_model.*")
    ran = {name for cell in release_tables.quantised_cells()[release_tables.GENAI] for name in cell.classes}
    if method in _UNMEASURED_METHODS or (method in _READ_BY_NAME and architecture not in ran):
        return unknown(f"tieconv has no measurement of onnxruntime-genai for {shown(method)} of {shown(architecture)}")
    if method not in _READ_BY_NAME:
        return _stop(f"onnxruntime-genai 0.18 does not read the quantisation method {shown(method)}")
    return None


def _flag(inspection: Inspection) -> bool:
    """Return the tie flag at the top level of the config, with the default of its class."""
    values = inspection.checkpoint.config_values
    return bool(values[FLAG]) if FLAG in values else inspection.family.default_v5


def _embedding_for_head(loaded: Loaded, pair: Pair) -> Loaded:
    """Return the model whose head is the embedding, if no head is stored."""
    embedding = loaded.parameters.get(pair.embedding)
    if loaded.source(pair.head) is not None or embedding is None or embedding.stored is None:
        return loaded
    return replace(
        loaded,
        parameters={**loaded.parameters, pair.head: embedding},
        alternatives=tuple(_embedding_for_head(alternative, pair) for alternative in loaded.alternatives),
    )


def _shared(loaded: Loaded, pair: Pair) -> Loaded:
    """Return the model in which the embedding reads the head's matrix, if both were loaded."""
    stored = loaded.source(pair.head) is not None and loaded.source(pair.embedding) is not None
    if not stored or loaded.tied(pair.head, pair.embedding):
        return loaded
    head = replace(loaded.parameters[pair.head], factor=1.0)
    parameters = {**loaded.parameters, pair.embedding: head}
    alternatives = tuple(_shared(alternative, pair) for alternative in loaded.alternatives)
    return replace(loaded, parameters=parameters, alternatives=alternatives, remark="")


_SOURCE = "onnxruntime-genai 0.18.0, models/builder.py and builders/base.py; microsoft/onnxruntime-genai#2306"
CONSUMERS = (Consumer(_LOADER, "0.18", since=(0, 18), cited=_SOURCE, load=load, ran=("0.18.0",)),)
