"""Find the bytes of one stored chunk: all of a range, or the tensor in an archive of `torch.save`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tieconv.checkpoint.files.chunks import Chunk
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.weight_file import ByteRange, Storage, TensorRecord
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.torch.pickle.values import PickleProblem
from tieconv.formats.torch.reader import read_one_tensor
from tieconv.sources.strided import StridedRange, dense, gather
from tieconv.text import shown


@record
class ChunkItem:
    """The stored bytes of a chunk. ``width`` is the bytes of an element, ``crc`` the checksum of ``checked``."""

    range: ByteRange
    width: int
    checked: ByteRange
    crc: int | None


def find_item(files: Files, name: str, dtype: str, width: int, chunk: Chunk) -> ChunkItem:
    """Return where the chunk of tensor ``name`` is stored. Raises `UnreadableError` if it holds something else."""
    if not chunk.archive:
        return ChunkItem(chunk.range, width, chunk.range, None)
    span = chunk.range
    try:
        stored, storage = read_one_tensor(_within(files, span), span.size, name)
    except PickleProblem as problem:
        raise _unlike(span.file, name, f"{problem}") from None
    if (stored.dtype, stored.shape) != (dtype, chunk.shape):
        has = f"{shown(stored.dtype)} {list(stored.shape)}"
        raise _unlike(span.file, name, f"is {has}, but .metadata says {shown(dtype)} {list(chunk.shape)}")
    return _moved(span, dense(stored), storage, width)


def read_item(
    read: Callable[[ByteRange, int, memoryview], None], item: ChunkItem, offset: int, target: memoryview
) -> None:
    """Fill ``target`` with the dense bytes of a chunk from ``offset`` on. Gathers a strided one."""
    span, size = item.range, len(target)
    if not isinstance(span, StridedRange):
        read(span, offset, target)
        return

    def read_at(position: int, buffer: memoryview) -> None:
        read(ByteRange(span.file, position, position + len(buffer)), 0, buffer)

    first = offset - offset % item.width
    end = min(-(-(offset + size) // item.width) * item.width, span.end)
    target[:] = gather(read_at, span, first, end)[offset - first :][:size]


def _within(files: Files, span: ByteRange) -> Callable[[int, int], bytes]:
    def pread(size: int, offset: int) -> bytes:
        return files.pread(span.file, max(min(size, span.size - offset), 0), span.start + offset)

    return pread


def _moved(span: ByteRange, stored: TensorRecord, storage: Storage, width: int) -> ChunkItem:
    """Return the item with offsets that count from the first byte of the file."""
    inside, start = stored.range, span.start
    if isinstance(inside, StridedRange):
        dense_range: ByteRange = StridedRange(
            span.file, 0, prod(stored.shape) * width, start + inside.base, width, stored.shape, inside.stride
        )
    else:
        dense_range = ByteRange(span.file, start + inside.start, start + inside.end)
    checked = ByteRange(span.file, start + storage.range.start, start + storage.range.end)
    return ChunkItem(dense_range, width, checked, storage.crc)


def _unlike(file: str, name: str, why: str) -> UnreadableError:
    return UnreadableError(
        f"{shown(file)}: the stored chunk of {shown(name)} {why}",
        "the copy may be incomplete; fetch the file again",
        "dcp.item",
    )
