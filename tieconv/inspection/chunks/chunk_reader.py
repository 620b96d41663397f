"""Read the tensors of a distributed checkpoint as if one file held them, each dense and in row-major order."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol

from tieconv.checkpoint.files.chunks import Chunk, ChunkTable
from tieconv.checkpoint.files.interface import ByteReader, Files
from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.inspection.chunks.chunk_items import ChunkItem, find_item, read_item
from tieconv.inspection.chunks.chunk_layout import ChunkRuns, chunk_runs, copy_chunk
from tieconv.text import shown

_CACHED = 20_000
"""Most chunks whose place is remembered."""


class _Sources(Files, ByteReader, Protocol):
    """The files of the checkpoint."""

    @property
    def bytes_read(self) -> int: ...


@record
class _Placed:
    """A chunk, its runs in the tensor, and a number that identifies it."""

    chunk: Chunk
    runs: ChunkRuns
    key: tuple[str, int]


class ChunkReader:
    """A `ByteReader` of the dense bytes of chunked tensors. Raises `UnreadableError` for a chunk that is damaged."""

    def __init__(self, files: _Sources, records: Iterable[TensorRecord], table: ChunkTable) -> None:
        self._files = files
        self._table = table
        self._records = sorted((record for record in records if record.range.size), key=lambda each: each.range.start)
        self._starts = [record.range.start for record in self._records]
        self._placed: dict[str, list[_Placed]] = {}
        self._items: dict[tuple[str, int], ChunkItem] = {}
        # What a comparison proved, so that no tensor is read twice: see `compare_bytes.equal` and `NanWatch`.
        self.equal_ranges: set[frozenset[ByteRange]] = set()
        self.nans: dict[ByteRange, bool] = {}

    @property
    def bytes_read(self) -> int:
        return self._files.bytes_read

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return bytes of a file, as the files do."""
        return self._files.pread(name, size, offset)

    def state(self, name: str) -> FileState:
        """Return the state of a file, as the files do."""
        return self._files.state(name)

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``, a range of the tensors one after the other."""
        target, position, done = buffer.cast("B"), span.start + offset, 0
        while done < len(target):
            record = self._records[bisect_right(self._starts, position + done) - 1]
            first = position + done - record.range.start
            size = min(record.range.size - first, len(target) - done)
            self._read(record, first, target[done : done + size])
            done += size

    def _read(self, record: TensorRecord, first: int, target: memoryview) -> None:
        end = first + len(target)
        placed = [each for each in self._chunks(record) if each.runs.start < end and each.runs.end > first]
        for each in placed:
            self._copy(record, each, first, target)
        if record.name in self._table.overlapping:
            self._check_agreement(record, placed, first, target)

    def _check_agreement(self, record: TensorRecord, placed: list[_Placed], first: int, target: memoryview) -> None:
        """Raise an error if a chunk differs from what later chunks wrote over it."""
        for each in placed:
            again = bytearray(target)
            self._copy(record, each, first, memoryview(again))
            if again != target:
                raise UnreadableError(
                    f"{shown(each.chunk.range.file)}: two chunks of {shown(record.name)} overlap and differ",
                    "save the checkpoint again",
                    "dcp.overlap",
                )

    def _copy(self, record: TensorRecord, placed: _Placed, first: int, target: memoryview) -> None:
        item = self._item(record, placed)

        def read(position: int, buffer: memoryview) -> None:
            read_item(self._files.read_into, item, position, buffer)

        copy_chunk(placed.runs, read, first, target)

    def _chunks(self, record: TensorRecord) -> list[_Placed]:
        placed = self._placed.get(record.name)
        if placed is None:
            width = _width(record)
            stored = enumerate(self._table.chunks[record.name])
            placed = [
                _Placed(chunk, chunk_runs(chunk, record.shape, width), (record.name, number))
                for number, chunk in stored
                if all(chunk.shape)
            ]
            self._placed[record.name] = placed
        return placed

    def _item(self, record: TensorRecord, placed: _Placed) -> ChunkItem:
        item = self._items.get(placed.key)
        if item is None:
            if len(self._items) >= _CACHED:
                self._items.clear()
            item = find_item(self._files, record.name, record.dtype, _width(record), placed.chunk)
            self._items[placed.key] = item
        return item

    def check_sums(self, record: TensorRecord) -> None:
        """Raise an error unless every chunk of the tensor has the CRC-32 of its archive."""
        for placed in self._chunks(record):
            item = self._item(record, placed)
            if item.crc is not None and item.crc != self._crc(item.checked):
                raise UnreadableError(
                    f"{shown(item.checked.file)}: the stored chunk of {shown(record.name)} has a wrong checksum",
                    "the file is damaged; fetch it again",
                    "dcp.crc",
                )

    def _crc(self, span: ByteRange) -> int:
        crc = 0
        block = memoryview(bytearray(min(span.size, _BLOCK)))
        for offset in range(0, span.size, _BLOCK):
            part = block[: min(_BLOCK, span.size - offset)]
            self._files.read_into(span, offset, part)
            crc = zlib.crc32(part, crc)
        return crc


_BLOCK = 1024 * 1024


def _width(record: TensorRecord) -> int:
    return record.range.size // record.elements
