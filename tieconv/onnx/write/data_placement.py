"""Where the tensors of written graphs come to lie: each range once, pages apart, in the files that they came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import Gathered
from tieconv.errors import RefusedError
from tieconv.onnx.graph.external import is_external, tensor_bytes, tensors
from tieconv.onnx.graph.model import LIMIT, NEW, GraphFile
from tieconv.text import shown

PAGE = 4096
SMALL = 64
"""Alignment of tensors of a page and more, and of smaller ones: sessions map the former into memory."""
DATA = ".data"

Source = ByteRange | Gathered


@record
class DataFile:
    """A file of tensor bytes to write: what it is made from, each content at its offset."""

    name: str
    pieces: tuple[tuple[int, Source], ...]

    @property
    def size(self) -> int:
        offset, content = self.pieces[-1]
        return offset + content.size

    @property
    def nbytes(self) -> int:
        """Bytes of the contents, without what lies between them."""
        return sum(content.size for _, content in self.pieces)


@record
class Store:
    """The files to write: graphs by name, tensor bytes, and the source's data files that have no successor."""

    graphs: dict[str, bytes]
    data: tuple[DataFile, ...]
    removed: tuple[str, ...]

    @property
    def bytes_written(self) -> int:
        return sum(map(len, self.graphs.values())) + sum(file.nbytes for file in self.data)


@record
class _Written:
    """A graph as a message, and what its external tensors hold."""

    file: GraphFile
    proto: onnx.ModelProto
    contents: tuple[tuple[onnx.TensorProto, Source], ...]


def lay_out(files: Sequence[GraphFile], lone: str | None, data: str | None = None) -> Store:
    """The files that follow from the graphs as they now are.

    ``lone`` is the name that a single graph gets: all of its external data then goes to one file beside it,
    ``data`` or else the graph's name with an ending. Raises `RefusedError` where a graph would become larger than a
    file of its kind can be.
    """
    written = [_message(file) for file in files]
    if lone is not None:
        return _encode(written, [lone], _lone(written[0], data or f"{lone}{DATA}"), ())
    remaining = {content for graph in written for _, content in graph.contents if isinstance(content, ByteRange)}
    lost = {span.file for file in files for span in file.ranges if span not in remaining}
    homes = {id(t): home for graph in written for t, home in _homes(graph)}
    grown = {homes[id(t)] for graph in written for t, content in graph.contents if isinstance(content, Gathered)}
    moved = lost | grown
    made = _data(written, homes, moved)
    anew = [g for g in written if g.file.changed or any(homes[id(t)] in moved for t, _ in g.contents)]
    removed = tuple(sorted(lost - {file.name for file in made}))
    return _encode(anew, [graph.file.name for graph in anew], made, removed)


def _message(file: GraphFile) -> _Written:
    try:
        proto = ir.serde.serialize_model(file.model)
    except Exception as error:
        raise RefusedError(
            f"{shown(file.name)} cannot be written again: onnx_ir does not serialize it ({type(error).__name__})",
            "export the model again",
            "onnx.unwritable",
        ) from error
    # The library describes every initializer a second time; what the source did not is left out again.
    plain = {initializer.name for initializer in proto.graph.initializer} - file.described
    infos = [info for info in proto.graph.value_info if info.name not in plain]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(infos)
    contents = tuple((tensor, _content(file, tensor)) for tensor in tensors(proto) if is_external(tensor))
    return _Written(file, proto, contents)


def _content(file: GraphFile, tensor: onnx.TensorProto) -> Source:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if entries["location"].startswith(NEW):
        return file.made[entries["location"]]
    name = os.path.normpath(os.path.join(os.path.dirname(file.name), entries["location"]))
    start = int(entries.get("offset") or 0)
    size = int(entries["length"]) if entries.get("length") else tensor_bytes(tensor)
    assert size is not None
    return ByteRange(name, start, start + size)


def _homes(graph: _Written) -> Iterator[tuple[onnx.TensorProto, str]]:
    """The file that each tensor goes to: its own, or the graph's for a new one."""
    for tensor, content in graph.contents:
        yield tensor, content.file if isinstance(content, ByteRange) else f"{graph.file.name}{DATA}"


def _data(written: Sequence[_Written], homes: dict[int, str], moved: set[str]) -> tuple[DataFile, ...]:
    """The files in ``moved`` with what is still read of them; references are set to the new places."""
    wanted: dict[str, dict[Source, None]] = {name: {} for name in sorted(moved)}
    for graph in written:
        for tensor, content in graph.contents:
            if homes[id(tensor)] in moved:
                wanted[homes[id(tensor)]].setdefault(content)
    data_files = tuple(_file(name, tuple(contents)) for name, contents in wanted.items() if contents)
    places = {(file.name, content): offset for file in data_files for offset, content in file.pieces}
    for graph in written:
        folder = os.path.dirname(graph.file.name)
        for tensor, content in graph.contents:
            home = homes[id(tensor)]
            if home in moved:
                _point(tensor, os.path.relpath(home, folder or "."), places[home, content], content.size)
    return data_files


def _lone(graph: _Written, name: str) -> tuple[DataFile, ...]:
    if not graph.contents:
        return ()
    file = _file(name, tuple(dict.fromkeys(content for _, content in graph.contents)))
    places = {content: offset for offset, content in file.pieces}
    for tensor, content in graph.contents:
        _point(tensor, file.name, places[content], content.size)
    return (file,)


def _file(name: str, contents: tuple[Source, ...]) -> DataFile:
    """The contents one after the other, in the order of their places in the source, new ones last."""
    pieces: list[tuple[int, Source]] = []
    end = 0
    for content in sorted(contents, key=_order):
        end += -end % (PAGE if content.size >= PAGE else SMALL)
        pieces.append((end, content))
        end += content.size
    return DataFile(name, tuple(pieces))


def _order(content: Source) -> tuple[bool, str, int]:
    span = content if isinstance(content, ByteRange) else content.range
    return isinstance(content, Gathered), span.file, span.start


def _point(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _encode(
    written: Sequence[_Written], names: Sequence[str], data: tuple[DataFile, ...], removed: tuple[str, ...]
) -> Store:
    graphs = {name: _bytes(graph) for graph, name in zip(written, names, strict=True)}
    return Store(graphs, data, removed)


def _bytes(graph: _Written) -> bytes:
    """The graph as a file. Raises `RefusedError` where it is larger than one can be."""
    try:
        made = bytes(graph.proto.SerializeToString())
    except EncodeError:  # from 2 GiB on, without a reason; nothing in these messages is required
        made = b""
    if made and len(made) <= LIMIT:
        return made
    raise RefusedError(
        f"{shown(graph.file.name)} would have more than {LIMIT:,} bytes, more than a graph can",
        "store its weights beside it first: onnx.save(..., save_as_external_data=True)",
        "onnx.too-large",
    )
