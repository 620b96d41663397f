"""A graph as it lies on disk, its weights mapped and not loaded: inputs, outputs, initializers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.reference.packages import need
from tieconv.sources.local import open_regular
from tieconv.text import shown

_PURPOSE = "reading an ONNX graph"
DTYPES = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
"""ONNX element types that tieconv computes with, as torch names them."""


@dataclass(frozen=True)
class Value:
    """An input or output: its ONNX element type and its axes, a symbol or ``None`` where one is free."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class Initializer:
    """A weight of the graph; ``array()`` maps its values, bf16 as bit patterns."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    tensor: Any

    def array(self) -> Any:
        """The values as a numpy array over the file."""
        return self.tensor.numpy()


@dataclass(frozen=True)
class Graph:
    """An ONNX file: ``weights`` are its initializers and constants, ``model`` the whole as onnx-ir reads it."""

    path: str
    opset: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Initializer, ...]
    model: Any

    def output(self, name: str) -> Value | None:
        return next((value for value in self.outputs if value.name == name), None)


def read_graph(path: str) -> Graph:
    """The graph at ``path``; `UnreadableError` where it is none or its weights are not beside it."""
    need("onnx", "onnx", _PURPOSE)
    ir = need("onnx_ir", "onnx", _PURPOSE)
    root = os.path.dirname(os.path.abspath(path))
    os.close(open_regular(path, root))
    try:
        model = ir.load(path)
    except Exception as error:
        # onnx-ir and protobuf raise what they like on a file that is no graph.
        told = f"{shown(path)} is not an ONNX graph: {shown(error)}"
        raise UnreadableError(told, "check the path", "onnx.malformed") from error
    graph = model.graph
    weights = tuple(_weights(ir, model, root))
    return Graph(
        path,
        int(graph.opset_imports.get("", 0)),
        tuple(_value(value) for value in graph.inputs if value.name not in graph.initializers),
        tuple(map(_value, graph.outputs)),
        weights,
        model,
    )


def _value(value: Any) -> Value:
    shape = () if value.shape is None else tuple(map(_side, value.shape))
    return Value(str(value.name), "" if value.dtype is None else value.dtype.name, shape)


def _weights(ir: Any, model: Any, root: str) -> Iterator[Initializer]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise UnreadableError(f"{shown(name)} has no value in the graph", "export it again", "onnx.malformed")
            yield _initializer(ir, name, value.const_value, root)
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            tensor = ir.convenience.get_const_tensor(node.outputs[0]) if node.op_type == "Constant" else None
            if tensor is not None:
                yield _initializer(ir, str(node.outputs[0].name), tensor, root)


def _side(side: Any) -> int | str | None:
    """A side's length, or its symbol; exporters write a side that is always 2 as the symbol "2"."""
    if isinstance(side, int):
        return side
    symbol = side.value
    return int(symbol) if isinstance(symbol, str) and symbol.isdecimal() else symbol


def _initializer(ir: Any, name: str, tensor: Any, root: str) -> Initializer:
    if isinstance(tensor, ir.ExternalTensor):
        _check_place(tensor, name, root)
    return Initializer(name, tensor.dtype.name, tuple(map(int, tensor.shape)), int(tensor.nbytes), tensor)


def _check_place(tensor: Any, name: str, root: str) -> None:
    """External data must lie in the graph's own directory, in a regular file that is long enough."""
    location = os.fspath(tensor.location)
    path = os.path.join(root, location)
    if os.path.isabs(location) or not os.path.normpath(path).startswith(root + os.sep):
        raise UnsafePathError(
            f"{shown(name)}: its data file {shown(location)} lies outside the graph's directory",
            "export the graph again, with its data beside it",
            "onnx.outside",
        )
    descriptor = open_regular(path, root)
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    if (tensor.offset or 0) + tensor.nbytes > size:
        raise UnreadableError(
            f"{shown(location)} ends within the tensor {shown(name)}", "copy the data file again", "onnx.short"
        )
