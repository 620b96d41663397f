"""Read the initializers of a graph as tensor records, whether inside or outside the graph file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph.model import NEW, GraphFile, sides
from tieconv.sources.local.files import FileSet

DTYPES = {
    "FLOAT": "F32",
    "FLOAT16": "F16",
    "BFLOAT16": "BF16",
    "DOUBLE": "F64",
    "INT8": "I8",
    "UINT8": "U8",
    "INT16": "I16",
    "UINT16": "U16",
    "INT32": "I32",
    "UINT32": "U32",
    "INT64": "I64",
    "UINT64": "U64",
    "FLOAT8E4M3FN": "F8_E4M3",
    "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ",
    "FLOAT8E5M2": "F8_E5M2",
    "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ",
}
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
        start = span.start + offset
        buffer.cast("B")[:] = held[start : start + len(buffer)]

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
            return None if str(tensor.location).startswith(NEW) else self._graph.range_of(tensor)
        name = f"{_INLINE}{index}"
        flat = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
        self._inline[name] = flat.data
        return ByteRange(name, 0, flat.nbytes)


def initializers(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Value]]:
    """Yield every initializer with its graph, outermost graph first."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            yield graph, value
