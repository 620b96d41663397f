"""Read graph files as models in memory. The structure is read; large tensors stay on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass

from tieconv.checkpoint.graph_plan import SharedMatrix
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.model_files import FileState, Listing
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.write_plan import Gathered
from tieconv.errors import RefusedError, TieconvError, UnreadableError
from tieconv.formats.onnx import check_readable, graph_names
from tieconv.formats.onnx.messages import BYTES, Wire
from tieconv.formats.onnx.tensor import External, byte_range as range_in_file, needed_bytes
from tieconv.sources.local import FileSet, open_files
from tieconv.text import shown

LIMIT = 2**31 - 1
"""Most bytes of a protobuf message."""
NEW = "tieconv:"
"""Location of a tensor whose bytes are not written yet. It is not a safe file name, so no model can use it."""
INLINE = 1 << 16
"""Least bytes of an initializer in the graph file that stay on disk. The model then refers to the file."""


@dataclass
class GraphFile:
    """One graph. ``name`` is its path relative to ``root``, ``size`` its bytes without external data.

    ``ranges`` are the byte ranges of its external tensors in files beside it. ``described`` are the values whose type
    and shape the graph lists separately. ``made`` holds, by location, the contents of tensors that a pass added and
    that are not written yet.
    """

    name: str
    root: str
    model: ir.Model
    size: int
    state: FileState
    ranges: tuple[ByteRange, ...]
    described: frozenset[str] = frozenset()
    made: dict[str, Gathered] = field(default_factory=dict)
    changed: bool = False

    def make(self, content: Gathered, like: ir.TensorProtocol, shape: tuple[int, ...], name: str) -> ir.ExternalTensor:
        """Return a tensor whose bytes are gathered when the graph is written."""
        location = f"{NEW}{len(self.made)}"
        self.made[location] = content
        return ir.ExternalTensor(location, 0, content.size, like.dtype, shape=ir.Shape(shape), name=name)


def read_graph(root: str, name: str, files: FileSet) -> GraphFile:
    """Return the graph ``name`` under ``root``. Every range of external data is checked, but no byte of it is read.

    Raises `UnreadableError` if the file is not a graph. Raises `UnsafePathError` for external data outside the
    directory or behind a symlink. Raises `RefusedError` for what cannot be written again without loss.
    """
    state = files.state(name)
    proto = parse(root, name)
    # Raise `RefusedError` for what onnx-ir would lose when it writes the graph again.
    lost = ["training information"] if proto.training_info else []
    if _has_sparse(proto.graph) or any(map(_is_sparse, (node for f in proto.functions for node in f.node))):
        lost.append("sparse tensors")
    if lost:
        problem = f"{shown(name)} holds {' and '.join(lost)}, which tieconv cannot write again"
        raise RefusedError(problem, "export the model for inference, with dense tensors", "onnx.unsupported")
    beside = (t for t in tensors(proto) if is_external(t) and all(e.value != _itself(name) for e in t.external_data))
    ranges = tuple(byte_range(tensor, name, root, files) for tensor in beside)
    try:
        model = _inlined(ir.serde.deserialize_model(proto)) or ir.serde.deserialize_model(proto)
    except Exception as error:
        raise _malformed(name, error) from error
    # Make an initializer of each Constant node with a matrix, as ONNX Runtime does.
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        tensor = _constant(node)
        graph, made = node.graph, node.outputs[0]
        if tensor is None or not isinstance(graph, ir.Graph) or made.name in graph.initializers:
            continue
        tensor.name = made.name
        value = ir.Value(name=made.name, shape=ir.Shape(sides(tensor.shape)), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        value.metadata_props.update(made.metadata_props)
        made.replace_all_uses_with(value, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        graph.register_initializer(value)
    ir.external_data.set_base_dir(model.graph, os.path.dirname(os.path.join(root, name)))
    return GraphFile(name, root, model, state.size, state, ranges, frozenset(i.name for i in proto.graph.value_info))


def _inlined(model: ir.Model) -> ir.Model | None:
    """Return the model without functions if one holds a matrix, because a function cannot have initializers.

    ONNX Runtime inlines functions too. Return ``None`` for functions that onnx-ir cannot inline.
    """
    nodes = (node for function in model.functions.values() for node in function.all_nodes())
    if any(_constant(node) is not None for node in nodes):
        try:
            InlinePass()(model)
        except (ValueError, PreconditionError):  # attributes that are graphs, another opset, or recursion
            return None
    return model


def _constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the matrix of a Constant node, or ``None`` for a small one and for other nodes."""
    if node.domain or node.op_type != "Constant" or len(node.outputs) != 1 or len(node.attributes) != 1:
        return None
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    numbers = tensor is not None and tensor.dtype is not ir.DataType.STRING
    return tensor if tensor is not None and numbers and tensor.size >= MIN_ELEMENTS else None


def read_sources(listing: Listing, files: FileSet) -> tuple[GraphFile, ...]:
    """Return the graphs of MODEL that `tieconv inspect` can read too. Raises as `read_graph` does."""
    graphs = []
    for name in graph_names(listing):
        check_readable(listing.root, files, name)
        graphs.append(read_graph(listing.root, name, files))
    return tuple(graphs)


@contextmanager
def blamed_on_source(graph: GraphFile) -> Iterator[None]:
    """Turn an exception of a pass into `UnreadableError` if onnx's checker rejects the graph too."""
    try:
        yield
    except TieconvError:
        raise
    except Exception as error:
        try:
            onnx.checker.check_model(os.path.join(graph.root, graph.name))
        except Exception as fault:  # noqa: BLE001 - the checker raises various exceptions
            lines = str(fault).strip().splitlines() or [type(fault).__name__]
            problem = f"{shown(graph.name)} is not a valid ONNX graph: {shown(lines[0], 200)}"
            raise UnreadableError(problem, "fetch or export the model again", "onnx.malformed") from error
        raise


def parse(root: str | Path, name: str) -> onnx.ModelProto:
    """Return the graph file as `referring` does. Raises `UnreadableError` if the file is not a graph."""
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(referring(root, name))
    except DecodeError as error:
        raise _malformed(name, error) from error
    if not proto.HasField("graph"):
        raise UnreadableError(f"{shown(name)} holds no graph", "check that it is an ONNX file", "onnx.malformed")
    return proto


def referring(root: str | Path, name: str) -> bytes:
    """Return the graph file as a message whose large initializers refer to the file. Their bytes are not read.

    The graph's field is cut there, because a parser joins the parts of a field that is repeated. Raises
    `UnreadableError` if the file is not a graph.
    """
    with open_files(root) as files:
        size = files.state(name).size
        if size > LIMIT:
            raise UnreadableError(f"{shown(name)} exceeds the size limit of a graph (2 GiB)", "", "onnx.too-large")
        wire = Wire(partial(files.pread, name), size, name, "ONNX graph")
        if os.path.islink(os.path.join(root, name)):  # onnx-ir and ONNX Runtime follow no link to a tensor's bytes
            return wire.take(0, size)
        return _with_references(wire, 0, size)


_INSIDE = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
    "Constant": {5: "constant"},
    "constant": {5: "tensor"},
}
"""The fields that hold initializers or the tensor of a Constant node, by their numbers in the schema of ONNX."""


def _with_references(wire: Wire, start: int, end: int, message: str = "model", depth: int = 0) -> bytes:
    """Return a message whose large tensors refer to the file."""
    made, copied, before = bytearray(), start, start
    if message == "node":  # its operator and its domain
        names = {n: wire.take(at, to) for n, kind, at, to in wire.fields(start, end) if kind == BYTES and n in (4, 7)}
        message = "Constant" if names.get(4) == b"Constant" and not names.get(7) else message
    for number, kind, at, stop in wire.fields(start, end):
        inside = _INSIDE[message].get(number) if kind == BYTES and stop - at >= INLINE and depth < MAX_DEPTH else None
        if inside:
            of = wire, at, stop
            part = _reference(*of) if inside == "tensor" else _with_references(*of, inside, depth + 1)
            if part:
                made += wire.take(copied, before) + prefix(number, len(part)) + part
                copied = stop
        before = stop
    return bytes(made + wire.take(copied, end))


def _reference(wire: Wire, start: int, end: int) -> bytes:
    """Return the tensor with a reference to its bytes in the file; empty for a small or external one."""
    before, raw = start, []
    for number, kind, at, stop in wire.fields(start, end):
        if number == 9 and kind == BYTES and stop - at >= INLINE:
            raw.append((before, at, stop))
        elif number == 14 and at == onnx.TensorProto.EXTERNAL:
            return b""
        before = stop
    if len(raw) != 1:
        return b""
    ((before, at, stop),) = raw
    entries = {"location": _itself(wire.name), "offset": at, "length": stop - at}
    external = [onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in entries.items()]
    reference = onnx.TensorProto(external_data=external, data_location=onnx.TensorProto.EXTERNAL)
    return wire.take(start, before) + wire.take(stop, end) + bytes(reference.SerializeToString())


def _itself(name: str) -> str:
    """Return the location by which tensors refer to their own graph file."""
    return f"./{os.path.basename(name)}"


def prefix(number: int, size: int) -> bytes:
    """Return what precedes a field of ``size`` bytes: its number, its wire type and its length."""
    made = bytearray()
    for value in (number << 3 | BYTES, size):
        while value > 0x7F:
            made.append(value & 0x7F | 0x80)
            value >>= 7
        made.append(value)
    return bytes(made)


def _malformed(name: str, error: Exception) -> UnreadableError:
    problem = f"{shown(name)} is not a readable ONNX graph ({type(error).__name__})"
    return UnreadableError(problem, "fetch or export the model again", "onnx.malformed")


def sides(shape: Iterable[object]) -> tuple[int, ...]:
    """Return the shape as numbers. It must not have symbols, like that of an initializer."""
    return tuple(int(str(side)) for side in shape)


def shared_matrix(
    file: GraphFile,
    value: ir.Value,
    kinds: tuple[str, ...],
    stored: tuple[int, int],
    held: tuple[int, int],
    dropped: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    **more: Any,
) -> SharedMatrix:
    """Return what happens to the matrix of an initializer. ``stored`` and ``held`` are bytes before and after."""
    assert value.const_value is not None
    return SharedMatrix(
        graph=file.name,
        kinds=kinds,
        initializer=str(value.name),
        dropped=dropped,
        nodes=nodes,
        dtype=value.const_value.dtype.name,
        shape=sides(value.const_value.shape),
        stored_before=stored[0],
        stored_after=stored[1],
        held_before=held[0],
        held_after=held[1],
        **more,
    )


def opset(model: ir.Model) -> int:
    """Return the version of the standard operators that the graph imports, or 0 if it imports none."""
    return model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 0))


# Find a graph's external tensors, and check their ranges before any byte is read.

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


def _has_sparse(graph: onnx.GraphProto) -> bool:
    return bool(graph.sparse_initializer) or any(map(_is_sparse, graph.node))


def _is_sparse(node: onnx.NodeProto) -> bool:
    """Return whether the node is a sparse Constant, or has one in a subgraph."""
    return any(
        attribute.HasField("sparse_tensor") or any(map(_has_sparse, (attribute.g, *attribute.graphs)))
        for attribute in node.attribute
    )


# Read the initializers of a graph as tensor records, whether inside or outside the graph file.

DTYPES = {
    "FLOAT": "F32", "FLOAT16": "F16", "BFLOAT16": "BF16", "DOUBLE": "F64", "INT8": "I8", "UINT8": "U8", "INT16": "I16",
    "UINT16": "U16", "INT32": "I32", "UINT32": "U32", "INT64": "I64", "UINT64": "U64", "FLOAT8E4M3FN": "F8_E4M3",
    "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ", "FLOAT8E5M2": "F8_E5M2", "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ",
}  # fmt: skip
"""ONNX types of weights in whole bytes, by the names that tieconv uses for all formats. BOOL is a mask's."""

_INLINE = "\0inline:"


@record
class Stored:
    """An initializer and the record of its bytes. The record's name is unique in the graph file."""

    value: ir.Value
    graph: ir.Graph
    record: TensorRecord


class GraphBytes:
    """A `ByteReader` over the tensors of one graph file. External tensors are read from disk in blocks."""

    def __init__(self, graph: GraphFile, files: FileSet) -> None:
        self._graph = graph
        self._files = files
        self._inline: dict[str, memoryview] = {}

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``. Raises what reading the file raises."""
        held = self._inline.get(span.file)
        if held is None:
            self._files.read_into(span, offset, buffer)
            return
        buffer.cast("B")[:] = held[span.start + offset :][: len(buffer)]

    def stored(self, least: int) -> list[Stored]:
        """Return the initializers of at least ``least`` elements, of this graph and its subgraphs."""
        entries = []
        for index, (graph, value) in enumerate(initializers(self._graph.model)):
            tensor = value.const_value
            if tensor is None or tensor.dtype.name not in DTYPES or tensor.size < least:
                continue
            span = self._span(tensor, index)
            if span is not None:
                record = TensorRecord(f"{index}:{value.name}", DTYPES[tensor.dtype.name], sides(tensor.shape), span)
                entries.append(Stored(value, graph, record))
        return entries

    def _span(self, tensor: ir.TensorProtocol, index: int) -> ByteRange | None:
        if isinstance(tensor, ir.ExternalTensor):
            if str(tensor.location).startswith(NEW):
                return None
            name = os.path.normpath(os.path.join(os.path.dirname(self._graph.name), os.fspath(tensor.location)))
            start = tensor.offset or 0
            return ByteRange(name, start, start + tensor.nbytes)
        name = f"{_INLINE}{index}"
        flat = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
        self._inline[name] = flat.data
        return ByteRange(name, 0, flat.nbytes)


def initializers(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Value]]:
    """Yield every initializer with its graph, outermost graph first."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            yield graph, value


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None
