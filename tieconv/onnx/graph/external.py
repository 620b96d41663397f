"""Find a graph's external tensors, and check their ranges before any byte is read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats.onnx.external import External
from tieconv.formats.onnx.external import byte_range as range_in_file
from tieconv.formats.onnx.tensor import needed_bytes
from tieconv.sources.local.files import FileSet
from tieconv.text import shown

MAX_DEPTH = 64
"""Most levels of nested subgraphs."""


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of the model: initializers and attributes, including subgraphs and functions."""
    yield from _of_graph(model.graph, 0)
    for function in model.functions:
        for node in function.node:
            yield from _of_node(node, 0)


def _of_graph(graph: onnx.GraphProto, depth: int) -> Iterator[onnx.TensorProto]:
    if depth > MAX_DEPTH:
        raise UnreadableError(f"the graph has more than {MAX_DEPTH} levels of subgraphs", "", "onnx.nesting")
    yield from graph.initializer
    for node in graph.node:
        yield from _of_node(node, depth)


def _of_node(node: onnx.NodeProto, depth: int) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            yield from _of_graph(graph, depth + 1)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return whether the bytes are in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def byte_range(tensor: onnx.TensorProto, graph: str, root: str, files: FileSet) -> ByteRange:
    """Return the byte range of an external tensor of the graph file ``graph``, relative to ``root``.

    Raises `UnsafePathError` for a symlink, or for a path outside the graph's directory. Raises `UnreadableError` if
    offset and length do not fit the file, the type or the shape.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return range_in_file(External(graph, tensor.name, entries, tensor_bytes(tensor)), root, files)


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return the bytes of a tensor of that type and shape, or ``None`` for a type without a fixed width."""
    return needed_bytes(tensor.data_type, tensor.dims)


def check_supported(model: onnx.ModelProto, graph: str) -> None:
    """Raise `RefusedError` for what onnx-ir would lose when it writes the graph again."""
    lost = []
    if model.training_info:
        lost.append("training information")
    if _has_sparse(model.graph) or any(map(_is_sparse, (node for f in model.functions for node in f.node))):
        lost.append("sparse tensors")
    if lost:
        raise RefusedError(
            f"{shown(graph)} holds {' and '.join(lost)}, which tieconv cannot write again",
            "export the model for inference, with dense tensors",
            "onnx.unsupported",
        )


def _has_sparse(graph: onnx.GraphProto) -> bool:
    return bool(graph.sparse_initializer) or any(map(_is_sparse, graph.node))


def _is_sparse(node: onnx.NodeProto) -> bool:
    """Return whether the node is a sparse Constant, or has one in a subgraph."""
    return any(
        attribute.HasField("sparse_tensor") or any(map(_has_sparse, (attribute.g, *attribute.graphs)))
        for attribute in node.attribute
    )
