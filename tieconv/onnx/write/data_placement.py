"""Lay out the tensor bytes of written graphs: each range once, page-aligned, in its former file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import onnx
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import Gathered, InlineBytes, OutputWeights, Piece
from tieconv.errors import RefusedError
from tieconv.onnx.graph_model import LIMIT, NEW, GraphFile, is_external, prefix, tensor_bytes, tensors
from tieconv.text import shown

PAGE = 4096
SMALL = 64
"""Alignment of tensors below one page. Larger ones use `PAGE`, because sessions map them into memory."""
DATA = ".data"

Source = ByteRange | Gathered


@record
class Store:
    """The files to write: graphs by name, data files, and the source's data files that are removed."""

    graphs: dict[str, OutputWeights]
    data: tuple[OutputWeights, ...]
    removed: tuple[str, ...]

    @property
    def files(self) -> tuple[OutputWeights, ...]:
        return (*self.graphs.values(), *self.data)


@record
class _Written:
    """A graph as a message, and the contents of its tensors in data files."""

    file: GraphFile
    proto: onnx.ModelProto
    contents: tuple[tuple[onnx.TensorProto, Source], ...]


def lay_out(files: Sequence[GraphFile], lone: str | None, data: str | None = None) -> Store:
    """Return the files for the graphs as they are now.

    ``lone`` is the new name of a single graph. All of its external data then goes to one file beside it. ``data`` is
    the name of that file; the default is the graph's name with an extension. Raises `RefusedError` if a graph would
    exceed the size limit of its format.
    """
    written = [_message(file) for file in files]
    if lone is not None:
        name = data or f"{lone}{DATA}"
        homes = {id(tensor): name for tensor, _ in written[0].contents}
        data_files = _data(written, homes, set(homes.values()))
        return Store({lone: _graph_file(written[0], lone)}, data_files, ())
    remaining = {content for graph in written for _, content in graph.contents if isinstance(content, ByteRange)}
    lost = {span.file for file in files for span in file.ranges if span not in remaining}
    # A tensor goes to its former file, or, if it is new, to the graph's data file.
    homes = {
        id(t): content.file if isinstance(content, ByteRange) else f"{graph.file.name}{DATA}"
        for graph in written
        for t, content in graph.contents
    }
    grown = {homes[id(t)] for graph in written for t, content in graph.contents if isinstance(content, Gathered)}
    moved = lost | grown
    made = _data(written, homes, moved)
    anew = [g for g in written if g.file.changed or any(homes[id(t)] in moved for t, _ in g.contents)]
    removed = tuple(sorted(lost - {file.name for file in made}))
    return Store({graph.file.name: _graph_file(graph, graph.file.name) for graph in anew}, made, removed)


def _message(file: GraphFile) -> _Written:
    try:
        proto = ir.serde.serialize_model(file.model)
    except Exception as error:
        problem = f"tieconv cannot write {shown(file.name)} again: onnx_ir fails to serialize it"
        hint = "export the model again"
        raise RefusedError(f"{problem} ({type(error).__name__})", hint, "onnx.unwritable") from error
    # onnx_ir adds a value_info for every initializer. Remove those that the source does not have.
    plain = {initializer.name for initializer in proto.graph.initializer} - file.described
    infos = [info for info in proto.graph.value_info if info.name not in plain]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(infos)
    contents = ((tensor, _content(file, tensor)) for tensor in tensors(proto) if is_external(tensor))
    return _Written(file, proto, tuple(pair for pair in contents if not _is_inline(file, pair[1])))


def _content(file: GraphFile, tensor: onnx.TensorProto) -> Source:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if entries["location"].startswith(NEW):
        return file.made[entries["location"]]
    name = os.path.normpath(os.path.join(os.path.dirname(file.name), entries["location"]))
    start = int(entries.get("offset") or 0)
    size = int(entries["length"]) if entries.get("length") else tensor_bytes(tensor)
    assert size is not None
    return ByteRange(name, start, start + size)


def _range(content: Source) -> ByteRange:
    return content if isinstance(content, ByteRange) else content.range


def _is_inline(file: GraphFile, content: Source) -> bool:
    """Return whether the content is made from bytes in the graph file, where it stays."""
    return _range(content).file == file.name


def _data(written: Sequence[_Written], homes: dict[int, str], moved: set[str]) -> tuple[OutputWeights, ...]:
    """Return the files in ``moved`` with the contents that are still read, and update the references."""
    wanted: dict[str, dict[Source, None]] = {name: {} for name in sorted(moved)}
    for graph in written:
        for tensor, content in graph.contents:
            if homes[id(tensor)] in moved:
                wanted[homes[id(tensor)]].setdefault(content)
    data_files = tuple(_file(name, tuple(contents)) for name, contents in wanted.items() if contents)
    places = {(file.name, piece.content): piece.offset for file in data_files for piece in file.pieces}
    for graph in written:
        folder = os.path.dirname(graph.file.name)
        for tensor, content in graph.contents:
            home = homes[id(tensor)]
            if home in moved:
                _point(tensor, os.path.relpath(home, folder or "."), places[home, content], content.size)
    return data_files


def _file(name: str, contents: tuple[Source, ...]) -> OutputWeights:
    """Return a file with the contents in the order of the source, new ones last."""
    pieces: list[Piece] = []
    end = 0
    for content in sorted(contents, key=_order):
        end += -end % (PAGE if content.size >= PAGE else SMALL)
        pieces.append(Piece(end, content))
        end += content.size
    return OutputWeights(name, (), None, pieces=tuple(pieces))


def _order(content: Source) -> tuple[bool, str, int]:
    span = _range(content)
    return isinstance(content, Gathered), span.file, span.start


def _point(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _graph_file(graph: _Written, name: str) -> OutputWeights:
    """Return the file of a graph. Raises `RefusedError` if it exceeds the size limit.

    A graph without changes keeps its bytes, unless its data moves to another file.
    """
    if not graph.file.changed and not graph.contents:
        return OutputWeights(name, (), None, pieces=(Piece(0, ByteRange(graph.file.name, 0, graph.file.size)),))
    pieces: list[Piece] = []
    end = 0
    for kind, run in groupby(_encoded(graph.file, graph.proto), type):
        contents = list(run)
        joined = InlineBytes(b"".join(part.data for part in contents if isinstance(part, InlineBytes)))
        for content in [joined] if kind is InlineBytes else contents:
            pieces.append(Piece(end, content))
            end += content.size
    if end <= LIMIT:
        return OutputWeights(name, (), None, pieces=tuple(pieces))
    problem = f"{shown(graph.file.name)} would exceed the size limit of a graph ({LIMIT:,} bytes)"
    hint = "store its weights in a separate file first: onnx.save(..., save_as_external_data=True)"
    raise RefusedError(problem, hint, "onnx.too-large")


_HOLDERS = (onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto, onnx.TensorProto)
"""Messages that may hold a tensor of the graph file."""
_RAW = 9
"""The field of a tensor with its bytes."""


def _encoded(file: GraphFile, message: Any) -> Iterator[Source | InlineBytes]:
    """Yield the message field by field, as protobuf writes it. A tensor of the graph file has its content there."""
    if isinstance(message, onnx.NodeProto) and not any(a.HasField("g") or a.graphs for a in message.attribute):
        yield InlineBytes(message.SerializeToString())
        return
    content = _content(file, message) if isinstance(message, onnx.TensorProto) and is_external(message) else None
    raw = (
        (InlineBytes(prefix(_RAW, content.size)), content) if content is not None and _is_inline(file, content) else ()
    )
    dropped = ("external_data", "data_location") if raw else ()
    for field, value in message.ListFields():
        if field.number > _RAW:
            yield from raw
            raw = ()
        if isinstance(value, _HOLDERS) or (value and isinstance(value, Sequence) and isinstance(value[0], _HOLDERS)):
            for inner in (value,) if isinstance(value, _HOLDERS) else value:
                parts = tuple(_encoded(file, inner))
                yield InlineBytes(prefix(field.number, sum(part.size for part in parts)))
                yield from parts
        elif field.name not in dropped:
            yield InlineBytes(type(message)(**{field.name: value}).SerializeToString())
