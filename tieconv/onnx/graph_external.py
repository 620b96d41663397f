"""Where a graph's tensors lie outside of it, checked before a byte of them is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NoReturn

import onnx

from tieconv.checkpoint.records import ByteRange
from tieconv.errors import RefusedError, UnreadableError, UnsafePathError
from tieconv.sources.local import FileSet
from tieconv.text import shown

MAX_DEPTH = 64
"""Subgraphs within subgraphs."""

_WIDTH_BITS = {
    name: bits
    for bits, names in {
        2: ("UINT2", "INT2"),
        4: ("UINT4", "INT4", "FLOAT4E2M1"),
        6: ("FLOAT6E2M3", "FLOAT6E3M2"),
        8: (
            "UINT8",
            "INT8",
            "BOOL",
            "FLOAT8E4M3FN",
            "FLOAT8E4M3FNUZ",
            "FLOAT8E5M2",
            "FLOAT8E5M2FNUZ",
            "FLOAT8E8M0",
        ),
        16: ("UINT16", "INT16", "FLOAT16", "BFLOAT16"),
        32: ("UINT32", "INT32", "FLOAT"),
        64: ("UINT64", "INT64", "DOUBLE", "COMPLEX64"),
        128: ("COMPLEX128",),
    }.items()
    for name in names
}


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model: initializers and attributes, of subgraphs and functions too."""
    yield from _of_graph(model.graph, 0)
    for function in model.functions:
        for node in function.node:
            yield from _of_node(node, 0)


def _of_graph(graph: onnx.GraphProto, depth: int) -> Iterator[onnx.TensorProto]:
    if depth > MAX_DEPTH:
        raise UnreadableError(f"the graph nests more than {MAX_DEPTH} levels", "", "onnx.nesting")
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
    """Whether the bytes lie in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def byte_range(tensor: onnx.TensorProto, graph: str, root: str, files: FileSet) -> ByteRange:
    """Where the bytes of an external tensor of the graph file ``graph`` lie, relative to ``root``.

    Raises `UnsafePathError` for a place outside the graph's directory and for a link, `UnreadableError` where offset
    and length do not fit the file, the type or the shape.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = _file(tensor, graph, entries.get("location", ""), root, files)
    size = files.state(name).size
    start, length = _number(tensor, graph, entries, "offset"), _number(tensor, graph, entries, "length")
    needed = tensor_bytes(tensor)
    end = (start or 0) + (size - (start or 0) if length is None else length)
    if needed is not None and length is None:
        end = (start or 0) + needed
    if end > size or (needed is not None and end - (start or 0) != needed):
        _unreadable(tensor, graph, f"needs {needed} bytes at {start or 0} of {shown(name)}, which has {size:,}")
    return ByteRange(name, start or 0, end)


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """Bytes of a tensor of that type and shape; ``None`` for a type that has no fixed width."""
    try:
        bits = _WIDTH_BITS[onnx.TensorProto.DataType.Name(tensor.data_type)]
    except (KeyError, ValueError):
        return None
    elements = 1
    for side in tensor.dims:
        elements *= max(side, 0)
    return -(-elements * bits // 8)


def _file(tensor: onnx.TensorProto, graph: str, location: str, root: str, files: FileSet) -> str:
    parts = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or parts.is_absolute() or ".." in parts.parts:
        raise UnsafePathError(
            f"{shown(graph)}: tensor {shown(tensor.name)} lies at {shown(location)!r}, outside the model's directory",
            "move its data beside the graph if you trust it",
            "onnx.outside",
        )
    name = os.path.normpath(os.path.join(os.path.dirname(graph), location))
    _check_links(tensor, graph, name, root)
    status = os.fstat(files.descriptor(name))
    if status.st_nlink > 1:
        _linked(tensor, graph, name, "has several names (hard links)")
    return name


def _check_links(tensor: onnx.TensorProto, graph: str, name: str, root: str) -> None:
    """No part of the path under the root is a symbolic link."""
    path = root
    for part in PurePosixPath(name).parts:
        path = os.path.join(path, part)
        if os.path.islink(path):
            _linked(tensor, graph, name, "is a link")


def _linked(tensor: onnx.TensorProto, graph: str, name: str, why: str) -> NoReturn:
    raise UnsafePathError(
        f"{shown(graph)}: tensor {shown(tensor.name)} lies in {shown(name)}, which {why}",
        "put a copy of the file in its place if you trust it (hf download --local-dir makes no links)",
        "onnx.linked",
    )


def _number(tensor: onnx.TensorProto, graph: str, entries: dict[str, str], key: str) -> int | None:
    text = entries.get(key)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        _unreadable(tensor, graph, f"has the {key} {shown(text)!r}")
    return int(text)


def _unreadable(tensor: onnx.TensorProto, graph: str, why: str) -> NoReturn:
    raise UnreadableError(
        f"{shown(graph)}: tensor {shown(tensor.name)} {why}",
        "fetch or export the model again",
        "onnx.external",
    )


def check_supported(model: onnx.ModelProto, graph: str) -> None:
    """Raise `RefusedError` for what the graph library would lose when it writes the graph again."""
    lost = []
    if model.training_info:
        lost.append("training information")
    if _has_sparse(model.graph):
        lost.append("sparse initializers")
    if lost:
        raise RefusedError(
            f"{shown(graph)} holds {' and '.join(lost)}, which would be lost",
            "export the model for inference, with dense tensors",
            "onnx.unsupported",
        )


def _has_sparse(graph: onnx.GraphProto) -> bool:
    if graph.sparse_initializer:
        return True
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return any(map(_has_sparse, inner))
