"""Describe the graphs of an encoder-decoder as one graph, whose weights are those of all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from tieconv.onnx.parity.encoder_decoder.pair_roles import Pair
from tieconv.onnx.parity.graph.file import Graph, Initializer, Value


def as_one_graph(path: str, pair: Pair) -> Graph:
    """Return inputs, outputs and weights of all graphs, with the graph's file before each name.

    A byte range that several graphs read is one weight.
    """
    weights: dict[object, Initializer] = {}
    for graph in pair.graphs:
        for weight in graph.weights:
            weights.setdefault(_byte_range(weight) or (graph.path, weight.name, id(weight)), _renamed(graph, weight))
    inputs = tuple(value for graph in pair.graphs for value in _values(graph, graph.inputs))
    outputs = tuple(value for graph in pair.graphs for value in _values(graph, graph.outputs))
    return Graph(path, pair.first.graph.opset, inputs, outputs, tuple(weights.values()), None)


def _byte_range(weight: Initializer) -> tuple[str, int, int, str, tuple[int, ...]] | None:
    """Return the byte range of a weight that is in a data file, with its type and shape."""
    location = getattr(weight.tensor, "path", None)
    if location is None:
        return None
    offset = int(weight.tensor.offset or 0)
    return os.path.realpath(location), offset, weight.nbytes, weight.dtype, weight.shape


def _renamed(graph: Graph, weight: Initializer) -> Initializer:
    return replace(weight, name=f"{os.path.basename(graph.path)}: {weight.name}")


def _values(graph: Graph, values: tuple[Value, ...]) -> Iterator[Value]:
    return (replace(value, name=f"{os.path.basename(graph.path)}: {value.name}") for value in values)
