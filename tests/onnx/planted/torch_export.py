"""Graphs that `torch.onnx.export(dynamo=True)` writes of a plain wrapper, without transformers' exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers as tr
from torch.export import Dim


class Decoder(torch.nn.Module):
    """A decoder whose cache is a flat list: key and value of each layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> tuple[Any, ...]:
        """Return the logits, and key and value of each layer with past and present."""
        cache = tr.DynamicCache()
        for layer, pair in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(*pair, layer)
        made = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        layers = made.past_key_values.layers
        return (made.logits, *(part for layer in layers for part in (layer.keys, layer.values)))


class Masked(torch.nn.Module):
    """A masked model that returns its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Return the logits."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


def by_torch(directory: Path, out: Path) -> None:
    """Export the model in ``directory`` to ``out`` with torch's exporter."""
    config = tr.AutoConfig.from_pretrained(directory)
    cls = getattr(tr, config.architectures[0])
    model = cls.from_pretrained(directory).eval()
    masked = cls.__name__.endswith("MaskedLM")
    wrapper, arguments, names = (_masked if masked else _decoder)(model)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrapper, arguments, out, dynamo=True, dynamic_shapes=_axes(arguments), external_data=False, **names
        )


def _decoder(model: Any) -> tuple[Any, tuple[Any, ...], dict[str, list[str]]]:
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [torch.randn(2, heads, 7, width) for _ in range(2 * config.num_hidden_layers)]
    ids, mask = torch.randint(0, config.vocab_size, (2, 3)), torch.ones(2, 10, dtype=torch.long)
    parts = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{part}" for part in parts)]
    outputs = ["logits", *(f"present.{part}" for part in parts)]
    places = torch.arange(7, 10).expand(2, 3).contiguous()
    return Decoder(model), (ids, mask, places, past), {"input_names": inputs, "output_names": outputs}


def _masked(model: Any) -> tuple[Any, tuple[Any, ...], dict[str, list[str]]]:
    ids = torch.randint(0, model.config.vocab_size, (2, 5))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    return Masked(model), (ids, torch.ones_like(ids), torch.zeros_like(ids)), {
        "input_names": names, "output_names": ["logits"],
    }  # fmt: skip


def _axes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Let batch, sequence and past be free."""
    two = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    return tuple([{0: Dim.DYNAMIC, 2: Dim.DYNAMIC}] * len(a) if isinstance(a, list) else two for a in arguments)
