"""Read strided views of a storage as dense tensors."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
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
    """Return a dense matrix as a strided view of its transpose."""
    rows, columns = record.shape
    return TensorRecord(record.name, record.dtype, (columns, rows), record.range, (1, columns))
