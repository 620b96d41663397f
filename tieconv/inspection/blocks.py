"""Stream tensor bytes: block boundaries, samples, reusable buffers and a byte counter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tieconv.checkpoint.files.weight_file import ByteRange

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import ByteReader

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


def stream(
    reader: ByteReader, span: ByteRange, *, start: int = 0, length: int = BLOCK, holes: bool = True
) -> Iterator[bytearray]:
    """Yield the bytes of ``span`` from ``start`` on, in pieces of ``length`` bytes (the last may be shorter).

    With ``holes`` false it leaves out pieces that are holes in the file: they are zeros.

    Every piece but a shorter last one is the same buffer, overwritten: use it before asking for the next.
    """
    buffer = bytearray(min(length, max(span.size - start, 0)))
    places = pieces(start, span.size, length) if holes else stored_pieces(reader, (span,), start, span.size, length)
    for offset, size in places:
        if size < len(buffer):
            buffer = bytearray(size)
        reader.read_into(span, offset, memoryview(buffer))
        yield buffer
