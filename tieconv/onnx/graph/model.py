"""Graph files as models in memory: the structure is read, the large tensors stay where they lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

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
"""Bytes that a protobuf message may have."""
NEW = "tieconv:"
"""Location of a tensor whose bytes are still to be written: no file of a model may have it (it is no safe name)."""


@dataclass
class GraphFile:
    """One graph. ``name`` is its path relative to ``root``, ``size`` its own bytes, without external data.

    ``ranges`` are the places of its external tensors, ``described`` the initializers that it says type and shape of
    apart; ``made`` the contents, by location, of tensors that a pass added and that are still to be written.
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
        """Where the tensor lies."""
        name = os.path.normpath(os.path.join(os.path.dirname(self.name), os.fspath(tensor.location)))
        start = tensor.offset or 0
        return ByteRange(name, start, start + tensor.nbytes)

    def make(self, content: Gathered, like: ir.TensorProtocol, shape: tuple[int, ...], name: str) -> ir.ExternalTensor:
        """A tensor whose bytes are to be gathered when the graph is written."""
        location = f"{NEW}{len(self.made)}"
        self.made[location] = content
        return ir.ExternalTensor(location, 0, content.size, like.dtype, shape=ir.Shape(shape), name=name)


def graph_names(listing: Listing) -> tuple[str, ...]:
    """The graph files that MODEL names, relative to its root."""
    if listing.named is not None:
        return (listing.named,) if listing.named.lower().endswith(SUFFIX) else ()
    return tuple(name for name in listing.entries if name.lower().endswith(SUFFIX))


def read_graph(root: str, name: str, files: FileSet) -> GraphFile:
    """The graph ``name`` under ``root``. No byte of external data is read, every place of it is checked.

    Raises `UnreadableError` for what is no graph, `UnsafePathError` for external data outside the directory or
    linked, `RefusedError` for what could not be written again without loss.
    """
    state = files.state(name)
    proto = _parse(name, state.size, files)
    check_supported(proto, name)
    ranges = tuple(byte_range(tensor, name, root, files) for tensor in tensors(proto) if is_external(tensor))
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:
        raise _malformed(name, error) from error
    ir.external_data.set_base_dir(model.graph, os.path.dirname(os.path.join(root, name)))
    described = frozenset(info.name for info in proto.graph.value_info) & {
        initializer.name for initializer in proto.graph.initializer
    }
    return GraphFile(name, root, model, state.size, state, ranges, described)


def read_sources(listing: Listing, files: FileSet) -> tuple[GraphFile, ...]:
    """The graphs that MODEL names, each one that `tieconv inspect` reads too. Raises as `read_graph` does."""
    graphs = []
    for name in graph_names(listing):
        check_readable(listing.root, files, name)
        graphs.append(read_graph(listing.root, name, files))
    return tuple(graphs)


@contextmanager
def blamed_on_source(graph: GraphFile) -> Iterator[None]:
    """Turn what a pass stumbles over into `UnreadableError`, where onnx's checker refuses the graph too."""
    try:
        yield
    except TieconvError:
        raise
    except Exception as error:
        try:
            onnx.checker.check_model(os.path.join(graph.root, graph.name))
        except Exception as fault:  # noqa: BLE001 - the checker raises its own kinds
            lines = str(fault).strip().splitlines() or [type(fault).__name__]
            raise UnreadableError(
                f"{shown(graph.name)} is not a valid ONNX graph: {shown(lines[0], 200)}",
                "fetch or export the model again",
                "onnx.malformed",
            ) from error
        raise


def _parse(name: str, size: int, files: FileSet) -> onnx.ModelProto:
    if size > LIMIT:
        raise UnreadableError(f"{shown(name)} is larger than a graph can be (2 GiB)", "", "onnx.too-large")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(files.pread(name, size, 0))
    except DecodeError as error:
        raise _malformed(name, error) from error
    if not proto.HasField("graph"):
        raise UnreadableError(f"{shown(name)} holds no graph", "is it an ONNX file?", "onnx.malformed")
    return proto


def _malformed(name: str, error: Exception) -> UnreadableError:
    return UnreadableError(
        f"{shown(name)} is no ONNX graph that can be read ({type(error).__name__})",
        "fetch or export the model again",
        "onnx.malformed",
    )


def sides(shape: Iterable[object]) -> tuple[int, ...]:
    """The sides of a shape that has no symbols, as those of an initializer."""
    return tuple(int(str(side)) for side in shape)


def opset(model: ir.Model) -> int:
    """The version of the standard operators that the graph imports; 0 where it imports none."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))
