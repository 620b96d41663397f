"""Lay out a weight file in its format: contents with offsets, and the literal bytes around them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from tieconv.checkpoint import write_plan
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, GgufHeader
from tieconv.checkpoint.write_plan import Piece, content_size
from tieconv.execute.copy import read_blocks
from tieconv.formats.safetensors import PAGE, encode_header
from tieconv.sources.strided import row_major

if TYPE_CHECKING:  # what lays out other formats is imported where a file has that format
    from tieconv.formats.torch.state_dict import Archive, Placed, SavedTensor


@record
class FileLayout:
    """A file to write: its ``size`` in bytes, and its contents in the order of their offsets.

    ``literals`` returns the bytes between the contents. Call it after those are written to the descriptor that it gets.
    """

    size: int
    pieces: tuple[Piece, ...]
    literals: Callable[[int], Iterable[tuple[int, bytes]]]


def file_layout(output: write_plan.OutputWeights) -> FileLayout:
    """Return the layout of the bytes of a file in its format."""
    if output.pieces:
        final = output.pieces[-1]
        return FileLayout(final.offset + final.size, output.pieces, lambda _: ())
    if output.gguf is not None:
        return _gguf(output, output.gguf)
    if output.format == "torch":
        return _torch(output)[0]
    head = header(output)
    pieces = tuple(Piece(len(head) + piece.offset, piece.content) for piece in tensor_pieces(output.tensors))
    return FileLayout(len(head) + output.nbytes, pieces, lambda _: [(0, head)])


def _torch(output: write_plan.OutputWeights) -> tuple[FileLayout, Archive]:
    from tieconv.formats.torch.state_dict import lay_out, pickle_state

    keys = storages(output)
    contents = [_content(storage) for storage in keys]
    archive = lay_out(
        pickle_state((_saved(tensor, keys) for tensor in output.tensors), output.metadata),
        [_placed(storage, content) for storage, content in zip(keys, contents, strict=True)],
    )
    pieces = tuple(
        piece
        for record, content in zip(archive.storages, contents, strict=True)
        for piece in _pieces(record.start, content)
    )

    def literals(descriptor: int) -> Iterable[tuple[int, bytes]]:
        return archive.literals(lambda record: checksum(descriptor, record.start, record.size))

    return FileLayout(archive.size, pieces, literals), archive


def storages(output: write_plan.OutputWeights) -> dict[write_plan.OutputStorage | write_plan.OutputTensor, int]:
    """Return a torch file's storages, numbered by first use; a tensor that shares no storage is its own key."""
    from tieconv.formats.torch.state_dict import check_writable

    numbers: dict[write_plan.OutputStorage | write_plan.OutputTensor, int] = {}
    for tensor in output.tensors:
        check_writable(tensor.name, tensor.dtype)
        numbers.setdefault(tensor.storage or tensor, len(numbers))
    return numbers


def places(output: write_plan.OutputWeights, data_start: int) -> Iterator[tuple[write_plan.OutputTensor, int]]:
    """Yield each tensor with the offset of its first byte; the tensor bytes of the file start at ``data_start``.

    A torch file takes all its offsets from its records. GGUF aligns each tensor.
    """
    if output.gguf is not None:
        starts = aligned_starts(output, output.gguf)
        yield from ((tensor, data_start + start) for tensor, start in zip(output.tensors, starts, strict=True))
        return
    if output.format == "torch":
        keys = storages(output)
        starts = [record.start for record in _torch(output)[1].storages]
        for tensor in output.tensors:
            yield tensor, starts[keys[tensor.storage or tensor]] + offset_in_storage(tensor)
        return
    position = data_start
    for tensor in output.tensors:
        yield tensor, position
        position += tensor.nbytes


def offset_in_storage(tensor: write_plan.OutputTensor) -> int:
    """Return the bytes from the start of its storage to a tensor's first byte."""
    if tensor.storage is None:
        return 0
    assert isinstance(tensor.content, ByteRange)  # a view always lies in kept bytes
    return tensor.content.start - tensor.storage.range.start


def _content(storage: write_plan.OutputStorage | write_plan.OutputTensor) -> write_plan.Content | write_plan.Padded:
    return storage.range if isinstance(storage, write_plan.OutputStorage) else storage.content


def _placed(
    storage: write_plan.OutputStorage | write_plan.OutputTensor, content: write_plan.Content | write_plan.Padded
) -> Placed:
    from tieconv.formats.torch.state_dict import Placed

    size = sum(map(content_size, write_plan.parts(content)))
    congruent = content.start if isinstance(content, ByteRange) else None
    return Placed(
        "", size, crc=storage.crc if isinstance(storage, write_plan.OutputStorage) else None, congruent=congruent
    )


def _pieces(start: int, content: write_plan.Content | write_plan.Padded) -> Iterator[Piece]:
    split = write_plan.parts(content)
    offsets = accumulate(map(content_size, split), initial=start)
    yield from (Piece(offset, part) for offset, part in zip(offsets, split, strict=False) if content_size(part))


def _saved(
    tensor: write_plan.OutputTensor, keys: dict[write_plan.OutputStorage | write_plan.OutputTensor, int]
) -> SavedTensor:
    from tieconv.formats.torch.pickle_stack import WIDTHS
    from tieconv.formats.torch.state_dict import SavedTensor

    storage = tensor.storage or tensor
    size = sum(map(content_size, write_plan.parts(_content(storage))))
    offset = offset_in_storage(tensor) // WIDTHS[tensor.dtype]
    stride = tensor.stride or row_major(tensor.shape)
    return SavedTensor(tensor.name, tensor.dtype, keys[storage], size, offset, tuple(tensor.shape), stride)


def checksum(descriptor: int, start: int, size: int) -> int:
    """Return the CRC-32 of written bytes."""
    crc = 0
    for _, block in read_blocks(descriptor, start, size):
        crc = zlib.crc32(block, crc)
    return crc


def bytes_in_place_of_shared(plan: write_plan.Plan) -> int:
    """Return the bytes to store anew on a file system that shares blocks wherever they align."""
    anew = sum(len(text.text.encode()) for text in plan.texts)
    return anew + sum(_not_shared(output) for output in plan.weights)


def _not_shared(output: write_plan.OutputWeights) -> int:
    whole = file_layout(output)
    total = whole.size
    for piece in whole.pieces:
        if isinstance(piece.content, ByteRange) and (piece.content.start - piece.offset) % PAGE == 0:
            total -= max(piece.size - 2 * PAGE, 0)
    return total


# Lay out the tensor bytes of a weight file and pad its header.


def tensor_pieces(tensors: Iterable[write_plan.OutputTensor]) -> Iterator[Piece]:
    """Return the tensors' contents in order, neighbours in the source merged into one piece."""
    offset = 0
    previous: write_plan.Content | None = None
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


def _merge(first: write_plan.Content, second: write_plan.Content) -> write_plan.Content | None:
    if isinstance(first, ByteRange) and isinstance(second, ByteRange):
        if first.file == second.file and first.end == second.start:
            return ByteRange(first.file, first.start, second.end)
    elif isinstance(first, write_plan.Zeros) and isinstance(second, write_plan.Zeros):
        return write_plan.Zeros(first.size + second.size)
    return None


def header(output: write_plan.OutputWeights) -> bytes:
    """Return the header, padded so that most tensor bytes keep their position within a page of the source."""
    joined = list(tensor_pieces(output.tensors))
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


# Lay out a GGUF file: the source's metadata as it is, a new list of tensors, and their aligned bytes.


def _gguf(output: write_plan.OutputWeights, header: GgufHeader) -> FileLayout:
    """Return the layout of ``output``, whose source has the header ``header``. Padding is zero."""
    from tieconv.formats.gguf import MAGIC, START, encode_infos

    starts = aligned_starts(output, header)
    listed = (
        (tensor.name, tensor.shape, tensor.dtype, start) for tensor, start in zip(output.tensors, starts, strict=True)
    )
    infos = encode_infos(listed)
    after_entries = START + header.entries.size
    data_start = aligned(after_entries + len(infos), header.alignment)
    pieces = [Piece(START, header.entries)] if header.entries.size else []
    for tensor, start in zip(output.tensors, starts, strict=True):
        pieces += [Piece(data_start + start + piece.offset, piece.content) for piece in tensor_pieces((tensor,))]
    end = starts[-1] + output.tensors[-1].nbytes if output.tensors else 0
    size = data_start + aligned(end, header.alignment)
    head = MAGIC + struct.pack("<IQQ", header.version, len(output.tensors), header.keys)
    return FileLayout(size, tuple(pieces), lambda _: [(0, head), (after_entries, infos)])


def aligned_starts(output: write_plan.OutputWeights, header: GgufHeader) -> list[int]:
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
