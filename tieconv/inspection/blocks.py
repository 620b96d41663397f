"""Streaming access to tensor bytes: block boundaries, samples, reusable buffers and a byte counter."""

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
"""Bytes of each of the samples that refute equality before anything is streamed."""


def is_costly(reader: ByteReader) -> bool:
    """Whether the bytes come over a network, so that none should be read twice."""
    return bool(getattr(reader, "costly", False))


def is_sampled(reader: ByteReader) -> bool:
    """Whether samples must do where bytes come over a network: unless all are asked for, or a plan needs a proof."""
    return is_costly(reader) and not getattr(reader, "proving", False)


ANNOUNCED = 256
"""Reads that are announced at a time: what is fetched ahead is held until it is read."""

Piece = tuple[ByteRange, int, int]
"""A range, and the offset and size of what is read of it."""


def announce(reader: ByteReader, wanted: Iterable[Piece]) -> None:
    """Tell a reader that fetches which small reads come next, so that they travel together; others need no telling."""
    method = getattr(reader, "announce", None)
    if method is not None:
        method(ByteRange(span.file, span.start + offset, span.start + offset + size) for span, offset, size in wanted)


def announced(reader: ByteReader, wanted: Iterable[Piece]) -> Iterator[bytearray]:
    """What those reads give, each in a buffer of its own; raises what the reader raises."""
    left = iter(wanted)
    while batch := list(islice(left, ANNOUNCED)):
        announce(reader, batch)
        for span, offset, size in batch:
            yield read(reader, span, offset, size)


def pieces(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of consecutive pieces of at most ``length`` bytes from ``start`` to ``end``."""
    for offset in range(start, end, length):
        yield offset, min(length, end - offset)


def stored_pieces(
    reader: ByteReader, spans: Sequence[ByteRange], start: int, end: int, length: int
) -> Iterator[tuple[int, int]]:
    """As `pieces`, without those that are holes of every span: the file system proves that these bytes are zeros.

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
    """(offset, size) of the head, tail and middle samples; none where they would cover half the bytes.

    The tail precedes the middle because padding and untrained rows are at the ends of a vocabulary.
    """
    if size < 6 * SAMPLE:
        return []
    return [(0, SAMPLE), (size - SAMPLE, SAMPLE), ((size - SAMPLE) // 2, SAMPLE)]


def read(reader: ByteReader, span: ByteRange, offset: int, size: int) -> bytearray:
    """``size`` bytes at ``offset`` of ``span`` in a buffer of their own; raises what the reader raises."""
    buffer = bytearray(size)
    reader.read_into(span, offset, memoryview(buffer))
    return buffer


def stream(
    reader: ByteReader, span: ByteRange, *, start: int = 0, length: int = BLOCK, holes: bool = True
) -> Iterator[bytearray]:
    """The bytes of ``span`` from ``start`` on, in pieces of ``length`` bytes (the last may be shorter).

    Pieces that are holes in the file are left out where ``holes`` is false: they are zeros.

    Every piece but a shorter last one is the same buffer, overwritten: use it before asking for the next.
    """
    buffer = bytearray(min(length, max(span.size - start, 0)))
    places = pieces(start, span.size, length) if holes else stored_pieces(reader, (span,), start, span.size, length)
    for offset, size in places:
        if size < len(buffer):
            buffer = bytearray(size)
        reader.read_into(span, offset, memoryview(buffer))
        yield buffer
