"""Wrap an encoder-decoder as three modules that a tracer can follow: encoder, decoder, and keys of the encoder.

Their arguments and results have the names that the tensors of the graphs get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tieconv.errors import RefusedError
from tieconv.reference.packages import need

Layers = dict[str, dict[str, dict[str, torch.Tensor]]]
"""Keys and values by layer, by `decoder` (self-attention) or `encoder` (cross-attention), and by `key` or `value`."""


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """Return the encoder's last hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last_hidden_state": self.encoder(**inputs).last_hidden_state}


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """Return the logits of some tokens after the past, and the self-attention's cache of past and tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: Layers,
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        layers = [past_key_values[str(index)] for index in range(len(past_key_values))]
        cache = _joined(_filled(layer["decoder"] for layer in layers), _filled(layer["encoder"] for layer in layers))
        made = decoded(self.model, input_ids, encoder_hidden_states, encoder_attention_mask, cache)
        return {"logits": made.logits, "present": named(made.past_key_values, "decoder")}


class CrossAttention(torch.nn.Module):  # type: ignore[misc]
    """Return the cross-attention's keys and values of the encoder's hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, encoder_hidden_states: torch.Tensor) -> dict[str, Any]:
        ids = torch.zeros_like(encoder_hidden_states[:, :1, 0], dtype=torch.int64)
        made = decoded(self.model, ids, encoder_hidden_states, None, empty_cache())
        return {"present": named(made.past_key_values, "encoder")}


def decoded(model: Any, ids: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> Any:
    """Return what the model's forward pass returns for decoder tokens. ``hidden`` are the encoder's states."""
    outputs = need("transformers.modeling_outputs", "onnx,torch", "exporting")
    masked = {} if mask is None else {"attention_mask": mask}
    return model(
        encoder_outputs=outputs.BaseModelOutput(last_hidden_state=hidden),
        decoder_input_ids=ids,
        past_key_values=cache,
        use_cache=True,
        **masked,
    )


def empty_cache() -> Any:
    """Return a cache of both attentions without a token."""
    caches = need("transformers", "onnx,torch", "exporting")
    return _joined(caches.DynamicCache(), caches.DynamicCache())


def named(cache: Any, side: str) -> Layers:
    """Return keys and values of one attention: ``decoder`` is the self-attention, ``encoder`` the cross-attention.

    Raises `RefusedError` if a layer holds other states.
    """
    layers = cache.self_attention_cache.layers if side == "decoder" else cache.cross_attention_cache.layers
    return {str(index): {side: {"key": key, "value": value}} for index, (key, value) in enumerate(_states(layers))}


def _states(layers: Iterable[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for layer in layers:
        key, value = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not (isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor) and key.ndim == value.ndim == 4):
            raise RefusedError(
                f"the cache layer {type(layer).__name__} holds other states than keys and values",
                "export with transformers.exporters, then run tieconv dedup on the result",
                "export.cache",
            )
        yield key, value


def _filled(states: Iterable[dict[str, torch.Tensor]]) -> Any:
    cache = need("transformers", "onnx,torch", "exporting").DynamicCache()
    for index, state in enumerate(states):
        cache.update(state["key"], state["value"], index)
    return cache


def _joined(own: Any, cross: Any) -> Any:
    return need("transformers", "onnx,torch", "exporting").EncoderDecoderCache(own, cross)
