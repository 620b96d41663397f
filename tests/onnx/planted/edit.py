"""Edits of a graph that several faults share, and models for faults besides those of the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.lazy import transformers as tr
from tests.onnx.exported import _SIZES


def constant(model: ModelProto, name: str, value: object) -> str:
    """Add an initializer and return its name."""
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def whole(model: ModelProto, name: str, value: int | list[int]) -> str:
    """Add an initializer of int64."""
    return constant(model, name, np.array(value, np.int64))


def before(model: ModelProto, name: str, *nodes: NodeProto) -> None:
    """Let every node read ``changed NAME``, which the last of ``nodes`` gives, instead of the input ``name``."""
    rename(model, name, f"changed {name}", outputs=False)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def behind(model: ModelProto, output: str, *nodes: NodeProto) -> None:
    """Let every node read ``changed OUTPUT``, which the last of ``nodes`` gives, instead of a node's ``output``."""
    at = next(at for at, node in enumerate(model.graph.node) if output in node.output)
    rename(model, output, f"changed {output}", outputs=False)
    for node in reversed(nodes):
        model.graph.node.insert(at + 1, node)


def rename(model: ModelProto, old: str, new: str, *, outputs: bool = True, inputs: bool = True) -> None:
    """Call a value of the main graph by another name, where nodes give it and where they read it."""
    for node in model.graph.node:
        if inputs:
            node.input[:] = [new if name == old else name for name in node.input]
        if outputs:
            node.output[:] = [new if name == old else name for name in node.output]


def nodes_of(model: ModelProto, operator: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == operator]


def lookup(model: ModelProto) -> NodeProto:
    """The node that looks words up: the first `Gather` from the tallest table."""
    rows = {weight.name: weight.dims[0] for weight in model.graph.initializer if len(weight.dims) == 2}
    return max(nodes_of(model, "Gather"), key=lambda node: rows.get(node.input[0], 0))


NUMBERS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.DOUBLE)


def set_numbers(
    model: ModelProto, chosen: Callable[[np.ndarray], bool], change: Callable[[np.ndarray], np.ndarray], count: int = 0
) -> None:
    """Change the initializers and constants that are ``chosen``, or the first ``count`` of them."""
    tensors = list(model.graph.initializer)
    for node in nodes_of(model, "Constant"):
        tensors += [attribute.t for attribute in node.attribute if attribute.name == "value"]
    left = count or len(tensors)
    for tensor in tensors:
        if not tensor.external_data and tensor.data_type in NUMBERS:
            values = numpy_helper.to_array(tensor)
            if left and chosen(values):
                made = np.ascontiguousarray(change(values).astype(values.dtype))
                tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
                left -= 1


def to_int(source: str, target: str) -> NodeProto:
    return helper.make_node("Cast", [source], [target], to=TensorProto.INT64)


MORE: dict[str, Callable[[], Any]] = {
    "mistral-48": lambda: tr.MistralForCausalLM(tr.MistralConfig(**_SIZES, sliding_window=48)),
    "llama-256": lambda: tr.LlamaForCausalLM(tr.LlamaConfig(**_SIZES | {"max_position_embeddings": 256})),
}
