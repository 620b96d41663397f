"""Read the bytes of tensors in memory, as `ByteReader` reads those of files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.live.live_tensors import LiveTensor
from tieconv.sources.strided import row_major

MEMORY = "memory"
"""The name of the weight file that has all storages, one after the other."""


class StorageReader:
    """A `ByteReader` of storages. It copies no more than one read from a device."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.equal_ranges: set[frozenset[ByteRange]] = set()  # two inspections of one model compare once
        self._starts: list[int] = []
        self._storages: list[Any] = []

    def add(self, start: int, holder: object) -> None:
        """Serve the storage of the tensor ``holder`` from byte ``start`` on; ``None`` if it cannot be read."""
        self._starts.append(start)
        self._storages.append(None if holder is None else _as_bytes(holder))

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``. Raises `UnreadableError` without values."""
        at = span.start + offset
        index = bisect_right(self._starts, at) - 1
        storage, first = self._storages[index], at - self._starts[index]
        if storage is None or first + len(buffer) > len(storage):
            raise UnreadableError("a tensor of the model has no values that tieconv can read", "", "live.unread")
        buffer.cast("B")[:] = memoryview(storage[first : first + len(buffer)].cpu().numpy())
        self.bytes_read += len(buffer)


def _as_bytes(holder: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=holder.device).set_(holder.untyped_storage())


def lay_out(tensors: Iterable[LiveTensor]) -> tuple[WeightFile, StorageReader]:
    """Return the tensors as one weight file, whose storages follow each other, and its reader."""
    reader = StorageReader()
    starts: dict[str, int] = {}
    storages: list[Storage] = []
    records: list[TensorRecord] = []
    end = 0
    for tensor in tensors:
        if tensor.storage not in starts:
            holder: Any = tensor.bytes_of
            size = holder.untyped_storage().nbytes() if holder is not None else _dense(tensor)
            starts[tensor.storage] = end
            storages.append(Storage(tensor.storage, ByteRange(MEMORY, end, end + size)))
            reader.add(end, holder)
            end += size
        start = starts[tensor.storage] + tensor.offset
        span = ByteRange(MEMORY, start, start + extent(tensor))
        records.append(TensorRecord(tensor.name, tensor.dtype, tensor.shape, span, tensor.stride, tensor.storage))
    records.sort(key=lambda entry: entry.range.start)
    return WeightFile(MEMORY, end, 0, tuple(records), None, tuple(storages)), reader


def _dense(tensor: LiveTensor) -> int:
    elements = 1
    for side in tensor.shape:
        elements *= side
    return elements * tensor.width


def extent(tensor: LiveTensor) -> int:
    """Return the bytes from the first to the end of the last element."""
    if 0 in tensor.shape:
        return 0
    steps = tensor.stride or row_major(tensor.shape)
    return (1 + sum((side - 1) * step for side, step in zip(tensor.shape, steps, strict=True))) * tensor.width
