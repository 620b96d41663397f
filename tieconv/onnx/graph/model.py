"""Read graph files as models in memory. The structure is read; large tensors stay on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.files.model_files import FileState, Listing
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.write_plan.output import Gathered
from tieconv.errors import TieconvError, UnreadableError
from tieconv.formats.onnx.model import check_readable
from tieconv.onnx.graph.external import byte_range, check_supported, is_external, tensors
from tieconv.sources.local.files import FileSet
from tieconv.text import shown

SUFFIX = ".onnx"
LIMIT = 2**31 - 1
"""Most bytes of a protobuf message."""
NEW = "tieconv:"
"""Location of a tensor whose bytes are not written yet. It is not a safe file name, so no model can use it."""


@dataclass
class GraphFile:
    """One graph. ``name`` is its path relative to ``root``, ``size`` its bytes without external data.

    ``ranges`` are the byte ranges of its external tensors. ``described`` are the values whose type and shape the graph
    lists separately. ``made`` holds, by location, the contents of tensors that a pass added and that are not
    written yet.
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

    def range_of(self, tensor: ir.ExternalTensor) -> ByteRange:
        """Return the byte range of an external tensor."""
        name = os.path.normpath(os.path.join(os.path.dirname(self.name), os.fspath(tensor.location)))
        start = tensor.offset or 0
        return ByteRange(name, start, start + tensor.nbytes)

    def make(self, content: Gathered, like: ir.TensorProtocol, shape: tuple[int, ...], name: str) -> ir.ExternalTensor:
        """Return a tensor whose bytes are gathered when the graph is written."""
        location = f"{NEW}{len(self.made)}"
        self.made[location] = content
        return ir.ExternalTensor(location, 0, content.size, like.dtype, shape=ir.Shape(shape), name=name)


def graph_names(listing: Listing) -> tuple[str, ...]:
    """Return the graph files of MODEL, relative to its root."""
    if listing.named is not None:
        return (listing.named,) if listing.named.lower().endswith(SUFFIX) else ()
    return tuple(name for name in listing.entries if name.lower().endswith(SUFFIX))


def read_graph(root: str, name: str, files: FileSet) -> GraphFile:
    """Return the graph ``name`` under ``root``. Every range of external data is checked, but no byte of it is read.

    Raises `UnreadableError` if the file is not a graph. Raises `UnsafePathError` for external data outside the
    directory or behind a symlink. Raises `RefusedError` for what cannot be written again without loss.
    """
    state = files.state(name)
    proto = _parse(name, state.size, files)
    check_supported(proto, name)
    ranges = tuple(byte_range(tensor, name, root, files) for tensor in tensors(proto) if is_external(tensor))
    try:
        model = _inlined(ir.serde.deserialize_model(proto)) or ir.serde.deserialize_model(proto)
    except Exception as error:
        raise _malformed(name, error) from error
    _lift_constants(model)
    ir.external_data.set_base_dir(model.graph, os.path.dirname(os.path.join(root, name)))
    described = frozenset(info.name for info in proto.graph.value_info)
    return GraphFile(name, root, model, state.size, state, ranges, described)


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


def _lift_constants(model: ir.Model) -> None:
    """Make an initializer of each Constant node with a matrix, as ONNX Runtime does."""
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
            raise UnreadableError(
                f"{shown(graph.name)} is not a valid ONNX graph: {shown(lines[0], 200)}",
                "fetch or export the model again",
                "onnx.malformed",
            ) from error
        raise


def _parse(name: str, size: int, files: FileSet) -> onnx.ModelProto:
    if size > LIMIT:
        raise UnreadableError(f"{shown(name)} exceeds the size limit of a graph (2 GiB)", "", "onnx.too-large")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(files.pread(name, size, 0))
    except DecodeError as error:
        raise _malformed(name, error) from error
    if not proto.HasField("graph"):
        raise UnreadableError(f"{shown(name)} holds no graph", "check that it is an ONNX file", "onnx.malformed")
    return proto


def _malformed(name: str, error: Exception) -> UnreadableError:
    return UnreadableError(
        f"{shown(name)} is not a readable ONNX graph ({type(error).__name__})",
        "fetch or export the model again",
        "onnx.malformed",
    )


def sides(shape: Iterable[object]) -> tuple[int, ...]:
    """Return the shape as numbers. It must not have symbols, like that of an initializer."""
    return tuple(int(str(side)) for side in shape)


def opset(model: ir.Model) -> int:
    """Return the version of the standard operators that the graph imports, or 0 if it imports none."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))
