"""Faults that an export can have, planted into a healthy graph: each changes what is computed, or what is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.onnx.exported import CACHE

Fault = Callable[[ModelProto], None]


def plant(source: Path, fault: Fault, out: Path) -> Path:
    """The graph at ``source`` with the fault, written to ``out``."""
    model = onnx.load(source)
    before = model.SerializeToString()
    fault(model)
    assert model.SerializeToString() != before, f"{source}: {fault} found nothing to change"
    onnx.save(model, out)
    return out


def gelu(model: ModelProto) -> None:
    """The exact GELU becomes the tanh approximation."""
    for node in _nodes(model, "Gelu"):
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", "tanh"))


def eps(model: ModelProto) -> None:
    """RMS norm adds 1e-5 where it added 1e-6."""

    def is_eps(name: str, values: np.ndarray) -> bool:
        return values.size == 1 and bool(np.isclose(values, 1e-6, rtol=1e-3, atol=0).all())

    _change(model, is_eps, lambda values: values * 10)


def layer_norm_eps(model: ModelProto) -> None:
    """LayerNorm adds 1e-5 where it added 1e-12."""
    for node in _nodes(model, "LayerNormalization"):
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-5


def mask_dropped(model: ModelProto) -> None:
    """The graph reads ones instead of the attention mask."""
    for node in model.graph.node:
        node.input[:] = ["all_ones" if name == "attention_mask" else name for name in node.input]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["mask_shape"], ["all_ones"], value=one))
    model.graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["mask_shape"]))


def rope(model: ModelProto) -> None:
    """The rotary frequencies are one percent too high."""

    def is_series(name: str, values: np.ndarray) -> bool:
        # By its values, 1, q, q² …: exporters name it after the buffer, or after what they fold into it.
        flat = values.ravel().astype("f8")
        if flat.size < 3 or flat[0] != 1 or not 0 < flat[1] < 1:
            return False
        return bool(np.allclose(flat, flat[1] ** np.arange(flat.size), rtol=1e-2, atol=0))

    _change(model, is_series, lambda values: values * 1.01)


def head_rows_swapped(model: ModelProto) -> None:
    """Two tokens of the head change places; the embedding keeps them."""
    head = _own_head(model)
    _change(model, lambda name, values: name == head, lambda values: values[[1, 0, *range(2, len(values))]])


def embedding_row(row: int, value: float = np.nan) -> Fault:
    """One row of the embedding is garbage; the head has its own copy."""

    def change(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[row] = value
        return values

    def fault(model: ModelProto) -> None:
        _own_head(model)
        _change(model, lambda candidate, values: candidate == _embedding(model), change)

    return fault


def bias_twice(model: ModelProto) -> None:
    """The head's bias is added a second time."""
    (node,) = [node for node in model.graph.node if "logits" in node.output]
    assert node.op_type == "Add"
    bias = next(name for name in node.input if "bias" in name)
    node.output[0] = "logits_once"
    model.graph.node.append(helper.make_node("Add", ["logits_once", bias], ["logits"]))


def caches_swapped(model: ModelProto) -> None:
    """The keys of the two layers leave in each other's place."""
    names = [f"output.{CACHE}.layers.{layer}.keys" for layer in (0, 1)]
    for node in model.graph.node:
        node.output[:] = [f"own.{name}" if name in names else name for name in node.output]
        node.input[:] = [f"own.{name}" if name in names else name for name in node.input]
    for ours, theirs in zip(names, reversed(names), strict=True):
        model.graph.node.append(helper.make_node("Identity", [f"own.{ours}"], [theirs]))


def head_rounded(model: ModelProto) -> None:
    """The head was rounded to fp16 on its way."""
    head = _own_head(model)
    _change(model, lambda name, values: name == head, lambda values: values.astype(np.float16).astype(values.dtype))


def softcap_dropped(model: ModelProto) -> None:
    """The last soft cap, tanh(x / 30) * 30, is left out of the logits."""
    (node,) = [node for node in model.graph.node if "logits" in node.output]
    last = next(tanh for tanh in _nodes(model, "Tanh") if tanh.output[0] in node.input)
    last.op_type = "Identity"


def frozen(axis: int, length: int) -> Fault:
    """An axis of input_ids holds one length only."""

    def fault(model: ModelProto) -> None:
        (ids,) = [value for value in model.graph.input if value.name == "input_ids"]
        ids.type.tensor_type.shape.dim[axis].dim_value = length

    return fault


def _nodes(model: ModelProto, operator: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == operator]


def _embedding(model: ModelProto) -> str:
    """The weight that tokens are looked up in: the tallest of those that a Gather reads."""
    looked_up = {node.input[0] for node in _nodes(model, "Gather")}
    return max(
        (w for w in model.graph.initializer if w.name in looked_up), key=lambda w: w.dims[0] if w.dims else 0
    ).name


def _own_head(model: ModelProto) -> str:
    """The head's weight, made a copy of its own where it is the embedding's."""
    shared = _embedding(model)
    if "own_head" not in {weight.name for weight in model.graph.initializer}:
        (weight,) = [weight for weight in model.graph.initializer if weight.name == shared]
        model.graph.initializer.add().CopyFrom(weight)
        model.graph.initializer[-1].name = "own_head"
        readers = [node for node in model.graph.node if shared in node.input and node.op_type != "Gather"]
        assert readers
        for node in readers:
            node.input[:] = ["own_head" if name == shared else name for name in node.input]
    return "own_head"


def _change(
    model: ModelProto, chosen: Callable[[str, np.ndarray], bool], change: Callable[[np.ndarray], np.ndarray]
) -> None:
    changed = False
    for weight in list(model.graph.initializer):
        values = numpy_helper.to_array(weight)
        # numpy knows bfloat16 as an extension type, whose kind is not "f".
        if (values.dtype.kind == "f" or values.dtype.name == "bfloat16") and chosen(weight.name, values):
            made = np.ascontiguousarray(change(values).astype(values.dtype))
            weight.CopyFrom(numpy_helper.from_array(made, weight.name))
            changed = True
    assert changed, "no weight to change"
