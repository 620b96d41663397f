"""Lay out a weight file in its format: contents with offsets, and the literal bytes around them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import accumulate
from typing import Protocol

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import Content, OutputStorage, OutputTensor, OutputWeights, Padded, parts
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.execute.contents import layout
from tieconv.execute.contents.copy import BLOCK, read_full
from tieconv.execute.contents.gguf_layout import aligned_starts, gguf_layout
from tieconv.execute.contents.layout import Piece
from tieconv.formats.safetensors.header import PAGE
from tieconv.formats.torch.pickle_state import SavedTensor, pickle_state
from tieconv.formats.torch.torch_dtypes import WIDTHS
from tieconv.formats.torch.write import Archive, Placed, check_writable, lay_out
from tieconv.sources.strided import row_major


class FileLayout(Protocol):
    """A file to write; offsets count from its first byte."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The contents, in the order of their offsets."""
        ...

    def literals(self, descriptor: int) -> Iterator[tuple[int, bytes]]:
        """Return the bytes between the contents; call it after those are written to ``descriptor``."""
        ...


def file_layout(output: OutputWeights) -> FileLayout:
    """Return the layout of the bytes of a file in its format."""
    if output.gguf is not None:
        return gguf_layout(output, output.gguf)
    return _torch(output) if output.format == "torch" else _safetensors(output)


@record
class _Safetensors:
    head: bytes
    pieces: tuple[Piece, ...]
    size: int

    def literals(self, descriptor: int) -> Iterator[tuple[int, bytes]]:
        yield 0, self.head


def _safetensors(output: OutputWeights) -> _Safetensors:
    head = layout.header(output)
    pieces = tuple(Piece(len(head) + piece.offset, piece.content) for piece in layout.pieces(output.tensors))
    return _Safetensors(head, pieces, len(head) + output.nbytes)


@record
class _Torch:
    archive: Archive
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return self.archive.size

    def literals(self, descriptor: int) -> Iterator[tuple[int, bytes]]:
        return self.archive.literals(lambda record: checksum(descriptor, record.start, record.size))


def _torch(output: OutputWeights) -> _Torch:
    keys = storages(output)
    contents = [_content(storage) for storage in keys]
    archive = lay_out(
        pickle_state((_saved(tensor, keys) for tensor in output.tensors), output.metadata),
        [_placed(storage, content) for storage, content in zip(keys, contents, strict=True)],
    )
    pieces = [
        piece
        for record, content in zip(archive.storages, contents, strict=True)
        for piece in _pieces(record.start, content)
    ]
    return _Torch(archive, tuple(pieces))


def storages(output: OutputWeights) -> dict[OutputStorage | OutputTensor, int]:
    """Return a torch file's storages, numbered by first use; a tensor that shares no storage is its own key."""
    numbers: dict[OutputStorage | OutputTensor, int] = {}
    for tensor in output.tensors:
        check_writable(tensor.name, tensor.dtype)
        numbers.setdefault(tensor.storage or tensor, len(numbers))
    return numbers


def places(output: OutputWeights, data_start: int) -> Iterator[tuple[OutputTensor, int]]:
    """Yield each tensor with the offset of its first byte; the tensor bytes of the file start at ``data_start``.

    A torch file takes all its offsets from its records. GGUF aligns each tensor.
    """
    if output.gguf is not None:
        starts = aligned_starts(output, output.gguf)
        yield from ((tensor, data_start + start) for tensor, start in zip(output.tensors, starts, strict=True))
        return
    if output.format == "torch":
        keys = storages(output)
        starts = [record.start for record in _torch(output).archive.storages]
        for tensor in output.tensors:
            yield tensor, starts[keys[tensor.storage or tensor]] + offset_in_storage(tensor)
        return
    position = data_start
    for tensor in output.tensors:
        yield tensor, position
        position += tensor.nbytes


def offset_in_storage(tensor: OutputTensor) -> int:
    """Return the bytes from the start of its storage to a tensor's first byte."""
    if tensor.storage is None:
        return 0
    assert isinstance(tensor.content, ByteRange)  # a view always lies in kept bytes
    return tensor.content.start - tensor.storage.range.start


def _content(storage: OutputStorage | OutputTensor) -> Content | Padded:
    return storage.range if isinstance(storage, OutputStorage) else storage.content


def _placed(storage: OutputStorage | OutputTensor, content: Content | Padded) -> Placed:
    size = sum(map(layout.content_size, parts(content)))
    congruent = content.start if isinstance(content, ByteRange) else None
    return Placed("", size, crc=storage.crc if isinstance(storage, OutputStorage) else None, congruent=congruent)


def _pieces(start: int, content: Content | Padded) -> Iterator[Piece]:
    split = parts(content)
    offsets = accumulate(map(layout.content_size, split), initial=start)
    yield from (Piece(offset, part) for offset, part in zip(offsets, split, strict=False) if layout.content_size(part))


def _saved(tensor: OutputTensor, keys: dict[OutputStorage | OutputTensor, int]) -> SavedTensor:
    storage = tensor.storage or tensor
    size = sum(map(layout.content_size, parts(_content(storage))))
    width = WIDTHS[tensor.dtype]
    return SavedTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        key=keys[storage],
        nbytes=size,
        offset=offset_in_storage(tensor) // width,
        shape=tuple(tensor.shape),
        stride=tensor.stride or row_major(tensor.shape),
    )


def checksum(descriptor: int, start: int, size: int) -> int:
    """Return the CRC-32 of written bytes."""
    buffer = memoryview(bytearray(min(BLOCK, size)))
    crc = 0
    for offset in range(0, size, BLOCK):
        block = buffer[: min(BLOCK, size - offset)]
        read_full(descriptor, block, start + offset)
        crc = zlib.crc32(block, crc)
    return crc


def bytes_in_place_of_shared(plan: Plan) -> int:
    """Return the bytes to store anew on a file system that shares blocks wherever they align."""
    anew = sum(len(text.text.encode()) for text in plan.texts)
    return anew + sum(_not_shared(output) for output in plan.weights)


def _not_shared(output: OutputWeights) -> int:
    whole = file_layout(output)
    total = whole.size
    for piece in whole.pieces:
        if isinstance(piece.content, ByteRange) and (piece.content.start - piece.offset) % PAGE == 0:
            total -= max(piece.size - 2 * PAGE, 0)
    return total
