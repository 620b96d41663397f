"""Make the inputs that a model is traced with.

All sizes differ and none is 1, because a tracer freezes a size of 1 and merges equal sizes.
"""

from __future__ import annotations

from typing import Any, assert_never

import torch

from tieconv.errors import RefusedError
from tieconv.onnx.export.embeds import EMBEDS, Reads, embedded
from tieconv.onnx.parity.bindings import Kind
from tieconv.reference import Batch, Reference
from tieconv.reference.model import feature_argument
from tieconv.text import shown

BATCH, SEQUENCE, PAST, SOURCE = 2, 3, 7, 5
_MODALITY_INPUTS = ("pixel_values", "input_features", "input_values", "flattened_patches", "input_modes")


def kind_of(model: Any, *, embeds: bool = False, one_graph: bool = False) -> Kind:
    """Return what the graphs of the model compute. ``one_graph`` excludes an encoder-decoder with caches.

    ``embeds`` says that the graph reads `inputs_embeds`, so that the model may take images. Raises `RefusedError` for a
    model with other inputs or outputs than tokens and logits.
    """
    name = type(model).__name__
    accepts = _accepts(model)
    pair = encoder_decoder_kind(type(model), one_graph=one_graph) if model.config.is_encoder_decoder else None
    if not embeds and not reads_features(type(model), pair):
        check_inputs(type(model))
    if model.get_output_embeddings() is None:
        raise _other_model(name, "has no head")
    if pair is not None:
        return pair
    if "MaskedLM" in name:
        return Kind.MASKED
    return Kind.CACHED if "past_key_values" in accepts else Kind.PLAIN


def encoder_decoder_kind(cls: Any, *, one_graph: bool) -> Kind:
    """Return whether the encoder-decoder class can run its two parts alone, with a cache between them."""
    parts = {"encoder_outputs", "decoder_input_ids", "past_key_values"} <= _accepts(cls)
    return Kind.PAIR if parts and not one_graph else Kind.SEQ2SEQ


def reads_features(cls: Any, kind: Kind | None) -> bool:
    """Return whether the class is exported as two graphs, of which the encoder reads images or sound."""
    return kind is Kind.PAIR and bool(feature_argument(cls))


def check_inputs(cls: Any) -> None:
    """Check that the class takes tokens, without an instance. Raises `RefusedError` for images and sound."""
    input_name = modality_input(cls)
    if input_name:
        raise _other_model(cls.__name__, f"takes {input_name}")


def modality_input(cls: Any) -> str:
    """Return the argument of the class for images or sound; empty if it takes only tokens."""
    accepts = _accepts(cls)
    input_name = next((name for name in _MODALITY_INPUTS if name in accepts), "")
    return input_name or feature_argument(cls)


def _other_model(name: str, why: str) -> RefusedError:
    return RefusedError(
        f"{shown(name)} {why}: export supports only language models from tokens to logits",
        "export only its language model, or use transformers.exporters",
        "export.kind",
    )


def _accepts(model: Any) -> frozenset[str]:
    from inspect import signature

    return frozenset(signature(model.forward).parameters)


def sample(reference: Reference, kind: Kind, config: Any, reads: Reads | None = None) -> dict[str, Any]:
    """Return keyword arguments of the forward pass for tracing. With ``reads`` the model gets `inputs_embeds`.

    Raises `RefusedError` if the cache holds other states than keys and values.
    """
    batch = sample_batch(int(config.vocab_size), PAST + SEQUENCE)
    if kind is Kind.CACHED:
        return _cached(reference, batch, reads)
    encoder = batch.until(SOURCE)
    if kind is Kind.SEQ2SEQ or kind is Kind.PAIR:
        inputs = reference.inputs(Batch(encoder.ids, encoder.mask, decoder_ids=batch.ids[:, :SEQUENCE]))
    elif kind is Kind.MASKED:
        types = int(getattr(config, "type_vocab_size", 0) or 0) > 1 and "token_type_ids" in _accepts(reference.model)
        kinds = torch.zeros_like(encoder.ids) if types else None
        inputs = reference.inputs(Batch(encoder.ids, encoder.mask, types=kinds, placed=False))
    elif kind is Kind.PLAIN:
        inputs = reference.inputs(encoder)
    else:
        assert_never(kind)
    return inputs | ({"use_cache": False} if "use_cache" in _accepts(reference.model) else {})


def sample_batch(rows: int, length: int) -> Batch:
    """Return random tokens below ``rows``. The first row has padding."""
    ids = torch.randint(0, rows, (BATCH, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return Batch(ids, mask)


def _cached(reference: Reference, batch: Batch, reads: Reads | None) -> dict[str, Any]:
    """Return the inputs of a step of three tokens, with seven tokens in the cache.

    M-RoPE has three numbers for a position, so the step then has four tokens.
    """
    from tieconv.reference.packages import need

    model = reference.model
    cache = need("transformers", "onnx,torch", "exporting").DynamicCache(config=model.config)
    past = PAST - (reads is not None and reads.axes > 1)
    before = Batch(batch.ids[:, :past], batch.mask[:, :past])
    with torch.no_grad():
        filled = reference.call(**reference.inputs(before), past_key_values=cache, use_cache=True).past_key_values
    layers = getattr(filled, "layers", None) or []
    if not layers or not all(_is_plain(layer) for layer in layers):
        raise RefusedError(
            f"{type(model).__name__} caches other states than keys and values, which export does not support",
            "export with transformers.exporters, then run tieconv dedup on the result",
            "export.cache",
        )
    inputs: dict[str, Any] = reference.inputs(batch, past)
    if reads is not None:
        inputs = _of_rows(reference, inputs, batch, reads)
    return inputs | {"past_key_values": filled, "use_cache": True}


def _of_rows(reference: Reference, inputs: dict[str, Any], batch: Batch, reads: Reads) -> dict[str, Any]:
    """Return the inputs with rows in place of ids, and what else the decoder reads."""
    inputs = {EMBEDS: embedded(reference.model, inputs.pop("input_ids"))} | inputs
    if reads.axes > 1:
        inputs["position_ids"] = torch.stack([inputs["position_ids"]] * reads.axes)
    if reads.blocks:
        inputs[reads.blocks] = torch.full_like(batch.ids, reads.causal)
    return inputs


def _is_plain(layer: Any) -> bool:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    return isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == values.ndim == 4
