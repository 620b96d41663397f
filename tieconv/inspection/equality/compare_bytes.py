"""Prove byte equality of stored tensors over every byte, with only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.inspection.blocks import BLOCK, SAMPLE, announce, read, sample_pieces, stored_pieces, stream


def equal(reader: ByteReader, a: ByteRange, b: ByteRange, watch: Callable[[bytearray], object] = len) -> bool:
    """Return whether two ranges hold the same bytes: a NaN equals itself, -0.0 does not equal 0.0.

    Head, tail and middle samples refute most differing pairs. Ranges count as equal only after every byte of both was
    compared. ``watch`` receives the blocks of ``a`` that are read. A network reader remembers the ranges that were
    equal. Raises what the reader raises.
    """
    if a.size != b.size:
        return False
    if a == b or same_file_range(reader, a, b):
        return True
    if is_known_equal(reader, a, b):
        return True
    if a.size <= SAMPLE:
        same = _small_equal(reader, a, b, watch)
    else:
        same = samples_equal(reader, a, b) and _lockstep_equal(reader, a, b, watch)
    if not same:
        return False
    equal_ranges: set[frozenset[ByteRange]] | None = getattr(reader, "equal_ranges", None)
    if equal_ranges is not None:
        equal_ranges.add(frozenset((a, b)))
    return True


def is_known_equal(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether the reader remembers the two ranges as equal."""
    equal_ranges: set[frozenset[ByteRange]] = getattr(reader, "equal_ranges", set())
    return bool(equal_ranges) and frozenset((a, b)) in equal_ranges


def same_file_range(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether both are the same range of files whose source knows, by hash, that they are equal."""
    known = getattr(reader, "content_id", None)
    if known is None or type(a) is not type(b) or replace(a, file=b.file) != b:
        return False
    file = known(a.file)
    return file is not None and file == known(b.file)


def samples_equal(reader: ByteReader, a: ByteRange, b: ByteRange) -> bool:
    """Return whether the samples of two ranges of the same size agree; only a difference is a proof."""
    samples = sample_pieces(a.size)
    announce(reader, [(span, offset, size) for offset, size in samples for span in (a, b)])
    return all(read(reader, a, offset, size) == read(reader, b, offset, size) for offset, size in samples)


def common_prefix(reader: ByteReader, a: ByteRange, b: ByteRange) -> int:
    """Return how many leading bytes two ranges of any size have in common; reads no further than that block."""
    size = min(a.size, b.size)
    left = stream(reader, replace(a, end=a.start + size))
    right = stream(reader, replace(b, end=b.start + size))
    done = 0
    for first, second in zip(left, right, strict=True):
        if first != second:
            return done + _prefix(first, second)
        done += len(first)
    return done


def _small_equal(reader: ByteReader, a: ByteRange, b: ByteRange, watch: Callable[[bytearray], object]) -> bool:
    """Compare two ranges in one read each: a model may hold hundreds of thousands of such tensors."""
    announce(reader, [(a, 0, a.size), (b, 0, b.size)])
    data = read(reader, a, 0, a.size)
    if data != read(reader, b, 0, b.size):
        return False
    watch(data)
    return True


def _lockstep_equal(reader: ByteReader, a: ByteRange, b: ByteRange, watch: Callable[[bytearray], object]) -> bool:
    # Whole bytearrays compare by memcmp; memoryviews compare item by item, five times slower.
    left, right = bytearray(min(BLOCK, a.size)), bytearray(min(BLOCK, a.size))
    for offset, size in stored_pieces(reader, (a, b), 0, a.size, BLOCK):
        if size < len(left):
            left, right = bytearray(size), bytearray(size)
        reader.read_into(a, offset, memoryview(left))
        reader.read_into(b, offset, memoryview(right))
        if left != right:
            return False
        watch(left)
    return True


def _prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two differing buffers, by bisection."""
    low, high = 0, len(left)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
