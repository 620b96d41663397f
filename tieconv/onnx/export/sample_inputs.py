"""What a model is traced with. Sides all differ and none is 1: a tracer freezes a side of 1, and joins equal ones."""

from __future__ import annotations

from typing import Any, assert_never

import torch

from tieconv.errors import RefusedError
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.reference import Batch, Reference
from tieconv.text import shown

BATCH, SEQUENCE, PAST, SOURCE = 2, 3, 7, 5
_MODALITY_INPUTS = ("pixel_values", "input_features", "input_values", "flattened_patches", "input_modes")


def kind_of(model: Any) -> Kind:
    """What a graph of the model computes. Raises `RefusedError` for a model that takes or gives more than tokens."""
    name = type(model).__name__
    accepts = _accepts(model)
    input_name = next((name for name in _MODALITY_INPUTS if name in accepts), None)
    input_name = input_name or (model.main_input_name if model.main_input_name != "input_ids" else None)
    if input_name or model.get_output_embeddings() is None:
        why = f"takes {input_name}" if input_name else "has no head"
        raise RefusedError(
            f"{shown(name)} {why}: export serves language models over tokens, with logits",
            "export its language model alone, or use transformers.exporters",
            "export.kind",
        )
    if model.config.is_encoder_decoder:
        return Kind.SEQ2SEQ
    if "MaskedLM" in name:
        return Kind.MASKED
    return Kind.CACHED if "past_key_values" in accepts else Kind.PLAIN


def _accepts(model: Any) -> frozenset[str]:
    from inspect import signature

    return frozenset(signature(model.forward).parameters)


def sample(reference: Reference, kind: Kind, config: Any) -> dict[str, Any]:
    """Keyword arguments of the forward pass for tracing. Raises `RefusedError` for a cache of another kind."""
    rows = int(config.vocab_size)
    ids = torch.randint(0, rows, (BATCH, PAST + SEQUENCE), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    if kind is Kind.CACHED:
        return _cached(reference, Batch(ids, mask))
    encoder = Batch(ids[:, :SOURCE], mask[:, :SOURCE])
    if kind is Kind.SEQ2SEQ:
        inputs = reference.inputs(Batch(encoder.ids, encoder.mask, decoder_ids=ids[:, :SEQUENCE]))
    elif kind is Kind.MASKED:
        types = int(getattr(config, "type_vocab_size", 0) or 0) > 1 and "token_type_ids" in _accepts(reference.model)
        kinds = torch.zeros_like(encoder.ids) if types else None
        inputs = reference.inputs(Batch(encoder.ids, encoder.mask, types=kinds, placed=False))
    elif kind is Kind.PLAIN:
        inputs = reference.inputs(encoder)
    else:
        assert_never(kind)
    return inputs | ({"use_cache": False} if "use_cache" in _accepts(reference.model) else {})


def _cached(reference: Reference, batch: Batch) -> dict[str, Any]:
    """A step of three tokens behind seven in the cache."""
    from tieconv.reference.packages import need

    model = reference.model
    cache = need("transformers", "onnx,torch", "exporting").DynamicCache(config=model.config)
    before = Batch(batch.ids[:, :PAST], batch.mask[:, :PAST])
    with torch.no_grad():
        filled = reference.call(**reference.inputs(before), past_key_values=cache, use_cache=True).past_key_values
    layers = getattr(filled, "layers", None) or []
    if not layers or not all(_is_plain(layer) for layer in layers):
        raise RefusedError(
            f"the cache of {type(model).__name__} holds other things than keys and values, which is not served yet",
            "use transformers.exporters, and tieconv dedup on what it writes",
            "export.cache",
        )
    inputs: dict[str, Any] = reference.inputs(batch, PAST)
    return inputs | {"past_key_values": filled, "use_cache": True}


def _is_plain(layer: Any) -> bool:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    return isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == values.ndim == 4
