"""Read strided views of a storage as dense tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.sources.strided import REQUEST_COST, ReadAt, StridedRange, dense, gather

BAND = 8 * 1024 * 1024
"""Bytes of a view gathered at once when it is read from end to end."""
_SMALL = 4 * 1024
"""Bytes below which a read is a sample, not part of a read from end to end."""
_HELD = 4


class ViewReader:
    """A `ByteReader` that gathers the bytes of a `StridedRange` and passes all other reads on."""

    def __init__(self, inner: ByteReader) -> None:
        self._inner = inner
        # A comparison reads two models, a byte count one: either may be remote.
        behind = (inner, *(getattr(inner, name, None) for name in ("inner", "a", "b")))
        self._travels = any(bool(getattr(reader, "costly", False)) for reader in behind)
        self._bands: dict[StridedRange, tuple[int, bytearray]] = {}

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``; raises what the wrapped reader raises."""
        if not isinstance(span, StridedRange):
            self._inner.read_into(span, offset, buffer)
            return
        done, target = 0, buffer.cast("B")
        while done < len(target):
            start, band = self._band(span, offset + done, len(target) - done)
            piece = memoryview(band)[offset + done - start :][: len(target) - done]
            target[done : done + len(piece)] = piece
            done += len(piece)

    def _band(self, span: StridedRange, offset: int, size: int) -> tuple[int, bytearray]:
        """Return gathered bytes that include ``offset``. Samples do not replace the bytes of a read from end to end."""
        start, band = self._bands.get(span, (0, bytearray()))
        if start <= offset < start + len(band):
            return start, band
        first = offset - offset % span.width
        wanted = size + offset % span.width if size < _SMALL else BAND
        end = min(first + -(-wanted // span.width) * span.width, span.end)
        read_band = (first, gather(self._read_at(span), span, first, end, REQUEST_COST if self._travels else None))
        if size >= _SMALL:
            self._bands.pop(span, None)
            while len(self._bands) >= _HELD:
                self._bands.pop(next(iter(self._bands)))
            self._bands[span] = read_band
        return read_band

    def _read_at(self, span: StridedRange) -> ReadAt:
        def read(position: int, buffer: memoryview) -> None:
            self._inner.read_into(ByteRange(span.file, position, position + len(buffer)), 0, buffer)

        return read


def readable(reader: ByteReader, records: Iterable[TensorRecord]) -> tuple[ByteReader, tuple[TensorRecord, ...]]:
    """Return the records with ranges that read densely, and the reader for them."""
    originals = tuple(records)
    laid_out = tuple(map(dense, originals))
    if laid_out == originals and not any(isinstance(record.range, StridedRange) for record in originals):
        return reader, originals
    return (reader if isinstance(reader, ViewReader) else ViewReader(reader)), laid_out


def one_way(left: TensorRecord, right: TensorRecord) -> tuple[TensorRecord, TensorRecord]:
    """Return two dense matrices, each the other's transpose, both with the longer side of ``left`` first.

    One of them is turned into a strided view of the same bytes. It is then read in long stretches, and its rows are
    tokens as the other's are.
    """
    return (left, turned(right)) if left.shape[0] >= left.shape[1] else (turned(left), right)


def turned(record: TensorRecord) -> TensorRecord:
    """Return a matrix as a strided view of its transpose."""
    rows, columns = record.shape
    down, across = record.stride or (columns, 1)
    return TensorRecord(record.name, record.dtype, (columns, rows), record.range, (across, down))


# Stream tensor bytes: block boundaries, samples, reusable buffers and a byte counter.

BLOCK = 256 * 1024
"""Bytes per read of a byte-for-byte comparison: two such buffers stay in a core's cache."""

SAMPLE = 4096
"""Bytes of each sample that can refute equality before a comparison streams all bytes."""


def is_costly(reader: ByteReader) -> bool:
    """Return whether the bytes are read over a network, so that none should be read twice."""
    return bool(getattr(reader, "costly", False))


def is_sampled(reader: ByteReader) -> bool:
    """Return whether samples replace a full comparison, because bytes are read over a network.

    Not if the user asks for all bytes, or if a plan needs a proof.
    """
    return is_costly(reader) and not getattr(reader, "proving", False)


ANNOUNCED = 256
"""Reads announced at a time: a reader holds what it fetched until it is read."""

Piece = tuple[ByteRange, int, int]
"""A range, and the offset and size of the bytes to read of it."""


def announce(reader: ByteReader, wanted: Iterable[Piece]) -> None:
    """Announce small reads to a reader that fetches over a network, so that it fetches them together."""
    method = getattr(reader, "announce", None)
    if method is not None:
        method(ByteRange(span.file, span.start + offset, span.start + offset + size) for span, offset, size in wanted)


def announced(reader: ByteReader, wanted: Iterable[Piece]) -> Iterator[bytearray]:
    """Yield the bytes of those reads, each in a separate buffer; raises what the reader raises."""
    left = iter(wanted)
    while batch := list(islice(left, ANNOUNCED)):
        announce(reader, batch)
        for span, offset, size in batch:
            yield read(reader, span, offset, size)


def pieces(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of consecutive pieces of at most ``length`` bytes from ``start`` to ``end``."""
    for offset in range(start, end, length):
        yield offset, min(length, end - offset)


def stored_pieces(
    reader: ByteReader, spans: Sequence[ByteRange], start: int, end: int, length: int
) -> Iterator[tuple[int, int]]:
    """Yield `pieces` without the holes that all spans share: the file system proves that these bytes are zeros.

    ``start`` and ``end`` are offsets within each span.
    """
    next_data: Callable[[ByteRange, int], int] | None = getattr(reader, "next_data", None)
    while start < end:
        if next_data is not None:
            stored = min(next_data(span, start) for span in spans)
            if stored >= end:
                return
            start += (stored - start) // length * length
        yield start, min(length, end - start)
        start += length


def sample_pieces(size: int) -> list[tuple[int, int]]:
    """Return (offset, size) of the head, tail and middle samples; none if they would cover half the bytes.

    The tail precedes the middle because padding and untrained rows are at the ends of a vocabulary.
    """
    if size < 6 * SAMPLE:
        return []
    return [(0, SAMPLE), (size - SAMPLE, SAMPLE), ((size - SAMPLE) // 2, SAMPLE)]


def read(reader: ByteReader, span: ByteRange, offset: int, size: int) -> bytearray:
    """Return ``size`` bytes at ``offset`` of ``span`` in a new buffer; raises what the reader raises."""
    buffer = bytearray(size)
    reader.read_into(span, offset, memoryview(buffer))
    return buffer


def stream(reader: ByteReader, span: ByteRange, *, length: int = BLOCK, holes: bool = True) -> Iterator[bytearray]:
    """Yield the bytes of ``span`` in pieces of ``length`` bytes (the last may be shorter).

    With ``holes`` false it leaves out pieces that are holes in the file: they are zeros.

    Every piece but a shorter last one is the same buffer, overwritten: use it before asking for the next.
    """
    buffer = bytearray(min(length, span.size))
    places = pieces(0, span.size, length) if holes else stored_pieces(reader, (span,), 0, span.size, length)
    for offset, size in places:
        if size < len(buffer):
            buffer = bytearray(size)
        reader.read_into(span, offset, memoryview(buffer))
        yield buffer
