"""Read a graph from disk with its weights mapped, not loaded: inputs, outputs, initializers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.value_type import identity_record, record
from tieconv.errors import UnreadableError
from tieconv.formats.onnx import check_readable
from tieconv.reference.packages import need
from tieconv.sources.local import open_files
from tieconv.text import shown

_PURPOSE = "reading an ONNX graph"
DTYPES = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
"""ONNX element types that tieconv computes with, as torch names them."""

QUANTISED = frozenset({
    "DequantizeLinear", "MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv", "MatMulNBits", "MatMulBnb4",
    "GatherBlockQuantized", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "QAttention", "QMoE",
    "QEmbedLayerNormalization",
})  # fmt: skip
"""Operators that compute with weights of a few bits."""


@record
class Value:
    """An input or output: its ONNX element type and its axes. A dynamic axis is a symbol or ``None``."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@identity_record
class Initializer:
    """A weight of the graph; ``array()`` maps its values, with bf16 as bit patterns."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    tensor: Any

    def array(self) -> Any:
        """Return the values as a numpy array that is mapped from the file."""
        return self.tensor.numpy()

    def drop_pages(self) -> None:
        """Let the system take back the memory of the mapped file. A later read maps the bytes again."""
        mapped = getattr(self.tensor, "raw", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


@record
class Graph:
    """An ONNX file: ``weights`` are its initializers and constants, ``model`` is the onnx-ir model.

    ``embedding`` is the graph that computes the input `inputs_embeds` of a decoder.
    """

    path: str
    opset: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Initializer, ...]
    model: Any
    embedding: Graph | None = None

    def output(self, name: str) -> Value | None:
        return next((value for value in self.outputs if value.name == name), None)


def read_graph(path: str) -> Graph:
    """Return the graph at ``path``.

    Raises `UnreadableError` if it is not a graph or if its data ends early. Raises `UnsafePathError` if its data is
    outside the directory or behind a symlink.
    """
    need("onnx", "onnx", _PURPOSE)
    ir = need("onnx_ir", "onnx", _PURPOSE)
    root = os.path.dirname(os.path.abspath(path))
    with open_files(root) as files:
        check_readable(root, files, os.path.basename(path))
    try:
        model = ir.load(path)
    except Exception as error:
        # onnx-ir and protobuf raise any exception on a file that is not a graph.
        message = f"{shown(path)} is not an ONNX graph: {shown(error)}"
        raise UnreadableError(message, "check the path", "onnx.malformed") from error
    graph = model.graph
    weights = tuple(_weights(ir, model))
    inputs = tuple(_value(value) for value in graph.inputs if value.name not in graph.initializers)
    opset, outputs = int(graph.opset_imports.get("", 0)), tuple(map(_value, graph.outputs))
    return Graph(path, opset, inputs, outputs, weights, model)


def quantised_weights(graph: Graph) -> Iterator[str]:
    """Yield clauses about nodes that compute with a quantized matrix."""
    matrices = {weight.name for weight in graph.weights if len(weight.shape) > 1 and weight.dtype not in DTYPES}
    nodes = graph.model.graph.all_nodes() if graph.model is not None else ()
    for node in nodes:
        for value in node.inputs if node.op_type in QUANTISED else ():
            if (
                value is not None
                and value.name in matrices
                and str(value.dtype.name if value.dtype else "") not in DTYPES
            ):
                yield f"{node.op_type} {node.name} reads the quantized weight {value.name}"


def _value(value: Any) -> Value:
    shape = () if value.shape is None else tuple(map(_side, value.shape))
    return Value(str(value.name), "" if value.dtype is None else value.dtype.name, shape)


def _weights(ir: Any, model: Any) -> Iterator[Initializer]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is None:
                problem = f"{shown(name)} has no value in the graph"
                raise UnreadableError(problem, "export the graph again", "onnx.malformed")
            yield _initializer(name, value.const_value)
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            tensor = ir.convenience.get_const_tensor(node.outputs[0]) if node.op_type == "Constant" else None
            if tensor is not None:
                yield _initializer(str(node.outputs[0].name), tensor)


def _side(side: Any) -> int | str | None:
    """Return a side's length or its symbol. Exporters write a side that is always 2 as the symbol "2"."""
    if isinstance(side, int):
        return side
    symbol = side.value
    return int(symbol) if isinstance(symbol, str) and symbol.isdecimal() else symbol


def _initializer(name: str, tensor: Any) -> Initializer:
    return Initializer(name, tensor.dtype.name, tuple(map(int, tensor.shape)), int(tensor.nbytes), tensor)


# Read a decoder of `inputs_embeds` together with the graph of its embedding in the same directory.

EMBEDDING = "embed_tokens.onnx"
EMBEDS = "inputs_embeds"
BLOCKS = ("token_type_ids", "mm_token_type_ids")
"""Inputs of a decoder that mark the tokens of an image."""
CAUSAL = "tieconv.causal_token_type"
"""Metadata of a decoder: the token type with which a token attends only to earlier ones."""


def read_graphs(path: str) -> Graph:
    """Return the graph at ``path``. A decoder of `inputs_embeds` has its embedding's graph as ``embedding``.

    Its inputs and weights then include those of the embedding; a weight that both read is there once. Raises what
    `read_graph` raises.
    """
    graph = read_graph(path)
    before = os.path.join(os.path.dirname(path), EMBEDDING)
    if not any(value.name == EMBEDS for value in graph.inputs) or not os.path.lexists(before):
        return graph
    embedding = read_graph(before)
    inputs = (*embedding.inputs, *graph.inputs)
    weights = tuple(_once([*graph.weights, *embedding.weights]))
    return replace(graph, inputs=inputs, weights=weights, embedding=embedding)


def parts(graph: Graph) -> tuple[Graph, ...]:
    """Return the graphs that run, the embedding first."""
    return (graph,) if graph.embedding is None else (graph.embedding, graph)


def _once(weights: list[Initializer]) -> Iterator[Initializer]:
    """Yield each weight once. Weights of two graphs are one if they have one byte range."""
    seen: dict[object, None] = {}
    names: set[str] = set()
    for weight in weights:
        tensor = weight.tensor
        path = getattr(tensor, "path", None)
        key = weight if path is None else (os.path.realpath(path), tensor.offset or 0, weight.nbytes)
        if key in seen:
            continue
        seen[key] = None
        own = f"{EMBEDDING}:{weight.name}" if weight.name in names else weight.name
        names.add(own)
        yield replace(weight, name=own)
