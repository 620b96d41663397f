"""Lay out the tensor bytes of a weight file and pad its header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.write_plan.output import Content, OutputTensor, OutputWeights, Scaled, Zeros
from tieconv.formats.safetensors.header import PAGE
from tieconv.formats.safetensors.write_header import encode_header


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a planned file; ``offset`` counts from the first tensor byte."""

    offset: int
    content: Content

    @property
    def size(self) -> int:
        return content_size(self.content)


def content_size(content: Content) -> int:
    """Return the bytes that ``content`` takes."""
    return content.range.size if isinstance(content, Scaled) else content.size


def pieces(tensors: Iterable[OutputTensor]) -> Iterator[Piece]:
    """Return the tensors' contents in order, neighbours in the source merged into one piece."""
    offset = 0
    previous: Content | None = None
    for content in (part for tensor in tensors for part in tensor.parts):
        if not content_size(content):
            continue
        merged = _merge(previous, content) if previous is not None else None
        if merged is None and previous is not None:
            yield Piece(offset, previous)
            offset += content_size(previous)
        previous = merged or content
    if previous is not None:
        yield Piece(offset, previous)


def _merge(first: Content, second: Content) -> Content | None:
    if isinstance(first, ByteRange) and isinstance(second, ByteRange):
        if first.file == second.file and first.end == second.start:
            return ByteRange(first.file, first.start, second.end)
    elif isinstance(first, Zeros) and isinstance(second, Zeros):
        return Zeros(first.size + second.size)
    return None


def header(output: OutputWeights) -> bytes:
    """Return the header, padded so that most tensor bytes keep their position within a page of the source."""
    joined = list(pieces(output.tensors))
    return encode_header(
        ((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) for tensor in output.tensors),
        output.metadata,
        congruent=lambda data_start: padding(joined, data_start),
    )


def padding(joined: Iterable[Piece], data_start: int) -> int:
    """Return the bytes (0 to 4095) to move ``data_start`` by; the first tensor byte stays at a multiple of 8."""
    shared: dict[int, int] = {}
    for piece in joined:
        if isinstance(piece.content, ByteRange) and piece.size >= PAGE:
            shift = (piece.content.start - data_start - piece.offset) % PAGE
            if (data_start + shift) % 8 == 0:
                shared[shift] = shared.get(shift, 0) + piece.size
    return min(shared, key=lambda shift: (-shared[shift], shift), default=0)
