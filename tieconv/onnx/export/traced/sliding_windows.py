"""Store the length of each sliding window in the graph, so that a caller does not feed it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

_WINDOW = re.compile(r"(?:input\.|output\.)?past_key_values\.(?:layers\.)?(\d+)\._sliding_window_tensor")


def fold_windows(model: ir.Model, cache: Any) -> dict[int, int]:
    """Replace the inputs with a window's length by constants, and remove the outputs that repeat them.

    transformers' caches hold the length as a tensor (``_sliding_window_tensor``). The exporter makes every tensor of a
    cache an input and an output. ``cache`` is the one that the model was traced with. Returns the length for the
    index of each removed output.
    """
    graph = model.graph
    lengths = _lengths(cache)
    constants: dict[int, ir.Value] = {}
    for value in [value for value in graph.inputs if _layer(value) in lengths]:
        length = lengths[_layer(value)]
        if length not in constants:
            constants[length] = _constant(graph, length)
        value.replace_all_uses_with(constants[length], replace_graph_outputs=True)
        graph.inputs.remove(value)
    removed = {index: lengths[_layer(value)] for index, value in enumerate(graph.outputs) if _layer(value) in lengths}
    for index in sorted(removed, reverse=True):
        del graph.outputs[index]
    if constants or removed:
        RemoveUnusedNodesPass()(model)
    return removed


def _lengths(cache: Any) -> Mapping[int, int]:
    """Return the window of each layer that has one."""
    lengths = {}
    for index, layer in enumerate(getattr(cache, "layers", None) or ()):
        length = getattr(layer, "_sliding_window_tensor", None)
        if length is not None:
            lengths[index] = int(length)
    return lengths


def _layer(value: ir.Value) -> int:
    """Return the layer whose window the value holds; -1 for any other value."""
    match = _WINDOW.fullmatch(value.name or "")
    return int(match[1]) if match else -1


def _constant(graph: ir.Graph, length: int) -> ir.Value:
    """Add a scalar INT64 initializer."""
    name = f"sliding_window_{length}"
    constant = ir.Value(
        name=name,
        shape=ir.Shape([]),
        type=ir.TensorType(ir.DataType.INT64),
        const_value=ir.tensor(length, ir.DataType.INT64, name=name),
    )
    graph.register_initializer(constant)
    return constant
