"""Lay out a GGUF file: the source's metadata as it is, a new list of tensors, and their aligned bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.weight_file import GgufHeader
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import OutputWeights
from tieconv.execute.contents import layout
from tieconv.execute.contents.layout import Piece
from tieconv.formats.gguf.header_bytes import START, encode_infos, encode_start


@record
class GgufLayout:
    """Where each byte of the file lies; see `tieconv.execute.contents.file_layout.FileLayout`."""

    pieces: tuple[Piece, ...]
    size: int
    start: bytes
    infos: tuple[int, bytes]

    def literals(self, descriptor: int) -> Iterator[tuple[int, bytes]]:
        yield 0, self.start
        yield self.infos


def gguf_layout(output: OutputWeights, header: GgufHeader) -> GgufLayout:
    """Return the layout of ``output``, whose source has the header ``header``. Padding is zero."""
    starts = aligned_starts(output, header)
    listed = (
        (tensor.name, tensor.shape, tensor.dtype, start) for tensor, start in zip(output.tensors, starts, strict=True)
    )
    infos = encode_infos(listed)
    after_entries = START + header.entries.size
    data_start = aligned(after_entries + len(infos), header.alignment)
    pieces = [Piece(START, header.entries)] if header.entries.size else []
    for tensor, start in zip(output.tensors, starts, strict=True):
        pieces += [Piece(data_start + start + piece.offset, piece.content) for piece in layout.pieces((tensor,))]
    end = starts[-1] + output.tensors[-1].nbytes if output.tensors else 0
    size = data_start + aligned(end, header.alignment)
    head = encode_start(header.version, len(output.tensors), header.keys)
    return GgufLayout(tuple(pieces), size, head, (after_entries, infos))


def aligned_starts(output: OutputWeights, header: GgufHeader) -> list[int]:
    """Return the offset of each tensor from the first tensor byte."""
    starts, position = [], 0
    for tensor in output.tensors:
        position = aligned(position, header.alignment)
        starts.append(position)
        position += tensor.nbytes
    return starts


def aligned(position: int, alignment: int) -> int:
    """Return the first multiple of ``alignment`` from ``position`` on."""
    return -(-position // alignment) * alignment
