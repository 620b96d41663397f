"""Equality is that of bytes, is claimed after all of them, and is refuted after few."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tieconv.checkpoint.weight_file import ByteRange
from tieconv.inspection.equality import common_prefix, equal
from tieconv.inspection.view_reader import BLOCK, SAMPLE, pieces, sample_pieces, stream

from .stored import Memory


def pair(left: bytes, right: bytes) -> tuple[Memory, ByteRange, ByteRange]:
    memory = Memory()
    ranges = [memory.store(name, "U8", data, (len(data),)).range for name, data in (("a", left), ("b", right))]
    return memory, ranges[0], ranges[1]


@settings(deadline=None)
@given(st.binary(max_size=64), st.binary(max_size=64))
def test_equality_is_that_of_bytes(left: bytes, right: bytes) -> None:
    assert equal(*pair(left, right)) == (left == right)
    assert equal(*pair(left, bytes(left)))


@settings(deadline=None)
@given(st.integers(0, 3 * BLOCK + 17), st.data())
def test_a_single_changed_byte_is_found_wherever_it_is(size: int, data: st.DataObject) -> None:
    left = bytes(size)
    assert equal(*pair(left, left))
    if size:
        index = data.draw(st.integers(0, size - 1))
        right = bytearray(left)
        right[index] = 1
        assert not equal(*pair(left, bytes(right)))
        assert common_prefix(*pair(left, bytes(right))) == index


def test_an_equal_pair_is_read_whole_and_its_samples_twice() -> None:
    memory, a, b = pair(bytes(5 * BLOCK + 3), bytes(5 * BLOCK + 3))
    reader = memory.counted()
    assert equal(reader, a, b)
    assert reader.bytes_read == 2 * (a.size + 3 * SAMPLE)


def test_a_small_equal_pair_is_read_once() -> None:
    memory, a, b = pair(bytes(6 * SAMPLE - 1), bytes(6 * SAMPLE - 1))
    reader = memory.counted()
    assert equal(reader, a, b)
    assert reader.bytes_read == 2 * a.size


def test_a_difference_in_a_sample_is_found_with_few_bytes() -> None:
    size = 8 * BLOCK
    for index in (0, size - 1, size // 2):
        right = bytearray(size)
        right[index] = 1
        memory, a, b = pair(bytes(size), bytes(right))
        reader = memory.counted()
        assert not equal(reader, a, b)
        assert reader.bytes_read < 64 * 1024


def test_different_sizes_and_one_range_need_no_reading() -> None:
    memory, a, b = pair(bytes(10), bytes(11))
    reader = memory.counted()
    assert not equal(reader, a, b)
    assert equal(reader, a, a)
    assert reader.reads == 0


def test_common_prefix_of_different_sizes_stops_at_the_shorter() -> None:
    assert common_prefix(*pair(bytes(BLOCK + 5), bytes(2 * BLOCK))) == BLOCK + 5
    assert common_prefix(*pair(b"", b"x")) == 0


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 30))
def test_pieces_cover_a_span_once(start: int, size: int, length: int) -> None:
    covered = [at for offset, count in pieces(start, start + size, length) for at in range(offset, offset + count)]
    assert covered == list(range(start, start + size))


@settings(deadline=None)
@given(st.integers(0, 10 * SAMPLE))
def test_samples_lie_inside_and_cover_at_most_half(size: int) -> None:
    samples = sample_pieces(size)
    assert all(offset >= 0 and offset + count <= size for offset, count in samples)
    assert 2 * sum(count for _, count in samples) <= size


def test_a_stream_gives_all_bytes() -> None:
    data = bytes(range(256)) * 5
    memory, a, _ = pair(data, b"")
    assert b"".join(bytes(block) for block in stream(memory, a, length=100)) == data
