"""Greedy tokens of a model and of its two graphs, from the same rows of `inputs_embeds`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

STEPS = 12


def torch_tokens(model: Any, inputs: dict[str, Any]) -> tuple[list[int], list[dict[str, Any]]]:
    """The new tokens of ``generate``, and what its decoder read in each pass: rows and positions."""
    read: list[dict[str, Any]] = []
    decoder = model.get_decoder()

    def note(_: object, args: Any, kwargs: dict[str, Any]) -> None:
        rows = kwargs.get("inputs_embeds")
        rows = model.get_input_embeddings()(kwargs["input_ids"]) if rows is None else rows
        read.append({"rows": rows.detach().clone(), "places": kwargs["position_ids"].detach().clone()})

    hook = decoder.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        made = model.generate(**inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False)
    hook.remove()
    return made[0, inputs["input_ids"].shape[1] :].tolist(), read


def graph_tokens(directory: Path, read: list[dict[str, Any]], types: torch.Tensor | None, causal: int) -> list[int]:
    """The tokens of the two graphs, from the rows that the decoder got at first and then from their own embedding."""
    embedding, decoder = (
        ort.InferenceSession(str(directory / name), providers=["CPUExecutionProvider"])
        for name in ("embed_tokens.onnx", "model.onnx")
    )
    shapes = {value.name: value.shape for value in decoder.get_inputs()}
    names = [value.name for value in decoder.get_outputs()]
    cache = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items() if "past" in name}
    rows, tokens, length = read[0]["rows"].numpy(), list[int](), 0
    for entry in read:
        places = entry["places"][-3:] if len(shapes["position_ids"]) == 3 else entry["places"]
        length += rows.shape[1]
        feeds = {"inputs_embeds": rows, "attention_mask": np.ones((1, length), np.int64), **cache}
        feeds["position_ids"] = places.numpy().reshape(*places.shape[:-1], -1)
        marks = next((name for name in shapes if name.endswith("token_type_ids")), None)
        if marks is not None:
            given = np.full((1, length), causal) if types is None else types.numpy()
            feeds[marks] = np.concatenate([given, np.full((1, length - given.shape[1]), causal)], 1).astype(np.int64)
        made = dict(zip(names, decoder.run(names, feeds), strict=True))
        cache = {name: made[name.replace("input.", "output.", 1)] for name in cache}
        tokens.append(int(made["logits"][0, -1].argmax()))
        (rows,) = embedding.run(None, {"input_ids": np.array([[tokens[-1]]])})
    return tokens
