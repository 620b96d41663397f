"""Conversions, distances, biases and scales against rational arithmetic, and equality of all bytes."""

from __future__ import annotations

from itertools import permutations, product
from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.weight_file import BITS, ByteRange
from tieconv.inspection.equality import all_zero, bias_summary, common_prefix, equal, has_nan, unusable
from tieconv.inspection.numeric.bits import (
    FORMATS,
    Pair,
    convert,
    decode,
    encode,
    is_finite,
    is_nan,
    monotone,
    ulp_distance,
)
from tieconv.inspection.numeric.rows import Bounds, _fit, scaling
from tieconv.inspection.view_reader import BLOCK, SAMPLE, pieces, sample_pieces, stream

from .stored import FLOAT_DTYPES, INFINITY, MANTISSA, Array, Memory, bits_of, exact_bits, normal, value_of, values_of

ALL_16 = np.arange(2**16, dtype="<u2")


def patterns(dtype: str) -> st.SearchStrategy[int]:
    """Bit patterns of every kind, those next to binade and type limits more often."""
    top = 1 << BITS[dtype]
    corners = [0, 1, 2, (1 << MANTISSA[dtype]) - 1, 1 << MANTISSA[dtype], INFINITY[dtype] - 1, INFINITY[dtype]]
    signed = [corner | sign for corner in [*corners, INFINITY[dtype] + 1] for sign in (0, top // 2)]
    return st.one_of(st.integers(0, top - 1), st.sampled_from(signed))


@pytest.mark.parametrize(("source", "target"), list(permutations(FLOAT_DTYPES, 2)))
def test_conversion_rounds_once_to_nearest_even(source: str, target: str) -> None:
    rng = np.random.default_rng(7)
    width = BITS[source]
    bits = rng.integers(0, 1 << width, 3000, dtype=f"u{width // 8}").astype(f"<u{width // 8}")
    tame = bits_of(rng.standard_normal(3000) * 10.0 ** rng.integers(-8, 5, 3000), source)
    bits = np.concatenate([bits, tame])
    converted = convert(bits, FORMATS[source], FORMATS[target])
    expected = bits_of(values_of(bits, source), target)
    nan = np.isnan(values_of(bits, source))
    assert np.array_equal(converted[~nan], expected[~nan])
    assert is_nan(converted[nan], FORMATS[target]).all()


@settings(deadline=None)
@given(st.data())
def test_conversion_of_any_pattern(data: st.DataObject) -> None:
    source, target = data.draw(st.sampled_from(list(permutations(FLOAT_DTYPES, 2))))
    pattern = data.draw(patterns(source))
    bits = np.array([pattern], f"<u{BITS[source] // 8}")
    value = value_of(pattern, source)
    converted = int(convert(bits, FORMATS[source], FORMATS[target])[0])
    if value == value:
        assert converted == exact_bits(value, target)
    else:
        assert value_of(converted, target) != value_of(converted, target)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_no_rounding_twice_from_float64(dtype: str) -> None:
    """Values a hair beside a midpoint, which float32 in between would move onto it."""
    step = 2.0 ** -MANTISSA[dtype]
    midpoints = 1 + step * (np.arange(8) + 0.5)
    values = np.concatenate([midpoints * (1 + 2.0**-40), midpoints * (1 - 2.0**-40), midpoints])
    values = np.concatenate([values, -values, values * 2.0 ** (2 - (16 if dtype == "F16" else 130))])
    assert np.array_equal(encode(values, FORMATS[dtype]), bits_of(values, dtype))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_short_pattern_decodes_and_converts_back(dtype: str) -> None:
    form = FORMATS[dtype]
    nan = is_nan(ALL_16, form)
    with np.errstate(invalid="ignore"):
        decoded = decode(ALL_16, form).astype("<f8")
    assert np.array_equal(decoded, values_of(ALL_16, dtype), equal_nan=True)
    wide = convert(ALL_16, form, FORMATS["F32"])
    assert np.array_equal(convert(wide, FORMATS["F32"], form)[~nan], ALL_16[~nan])
    assert is_nan(convert(wide[nan], FORMATS["F32"], form), form).all()
    assert np.array_equal(is_finite(ALL_16, form), np.isfinite(values_of(ALL_16, dtype)))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_monotone_integers_order_as_the_values_do(dtype: str) -> None:
    form = FORMATS[dtype]
    numbers = ALL_16[~is_nan(ALL_16, form)]
    order = np.argsort(values_of(numbers, dtype), kind="stable")
    steps = monotone(numbers, form)[order].astype("<i4")
    values = values_of(numbers, dtype)[order]
    assert np.array_equal(np.diff(steps), np.diff(values) > 0)


@settings(deadline=None)
@given(st.data())
def test_ulp_distance_is_symmetric_and_counts_steps(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOAT_DTYPES))
    sign = 1 << (BITS[dtype] - 1)
    magnitudes = [data.draw(st.integers(0, INFINITY[dtype])) for _ in range(2)]
    for signs in product((0, sign), repeat=2):
        a, b = (np.array([m | s], f"<u{BITS[dtype] // 8}") for m, s in zip(magnitudes, signs, strict=True))
        expected = abs(magnitudes[0] - magnitudes[1]) if signs[0] == signs[1] else sum(magnitudes)
        assert int(ulp_distance(a, b, FORMATS[dtype])[0]) == expected
        assert int(ulp_distance(b, a, FORMATS[dtype])[0]) == expected


def integers(dtype: str, patterns: list[int]) -> Array:
    return np.array(patterns, f"<u{BITS[dtype] // 8}")


@settings(deadline=None)
@given(st.sampled_from(FLOAT_DTYPES), st.data())
def test_summary_and_nan_of_any_patterns(dtype: str, data: st.DataObject) -> None:
    sign = 1 << (BITS[dtype] - 1)
    magnitude = st.one_of(
        st.sampled_from([0, 1, INFINITY[dtype] - 1, INFINITY[dtype], INFINITY[dtype] + 1, sign - 1]),
        st.integers(0, INFINITY[dtype] - 1),
    )
    patterns = data.draw(st.lists(st.builds(lambda m, s: m | s, magnitude, st.sampled_from([0, sign])), max_size=9))
    values = [abs(value_of(pattern, dtype)) for pattern in patterns]
    memory = Memory()
    record = memory.store("bias", dtype, integers(dtype, patterns))
    nan = any(isnan(value) for value in values)
    assert has_nan(memory, record) == nan
    state, largest = bias_summary(memory, record)
    assert state is (BiasState.NONZERO if any(value != 0 for value in values) else BiasState.ZERO)
    assert largest == (None if nan or inf in values else max(values, default=0.0))
    assert all_zero(memory, record.range) == (not any(patterns))
    assert (unusable(memory, record) == "zeros") == all(value == 0 for value in values)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("index", [0, 1000, -1])
def test_one_value_in_a_large_tensor(dtype: str, index: int) -> None:
    memory = Memory()
    bits = np.zeros(3 * BLOCK // 4 + 1, f"<u{BITS[dtype] // 8}")
    bits[index] = 1
    record = memory.store("bias", dtype, bits)
    assert bias_summary(memory, record) == (BiasState.NONZERO, value_of(1, dtype))
    assert not all_zero(memory, record.range)
    assert not has_nan(memory, record)
    for sign in (0, 1 << (BITS[dtype] - 1)):
        bits[index] = (INFINITY[dtype] + 1) | sign
        assert has_nan(memory, memory.store("bias", dtype, bits))
        bits[index] = INFINITY[dtype] | sign
        assert not has_nan(memory, memory.store("bias", dtype, bits))


@pytest.mark.parametrize("dtype", ["I32", "F8_E4M3", "SOMETHING_NEW"])
def test_other_types_are_zero_by_their_bytes_only(dtype: str) -> None:
    memory = Memory()
    zero = memory.store("zero", dtype, bytes(8), (2,))
    unlike = memory.store("other", dtype, b"\x80" + bytes(7), (2,))
    assert bias_summary(memory, zero) == (BiasState.ZERO, 0.0)
    assert bias_summary(memory, unlike) == (BiasState.NONZERO, None)
    assert not has_nan(memory, unlike)


def test_all_zero_stops_at_the_first_other_byte() -> None:
    memory = Memory()
    record = memory.store("a", "U8", b"\x01" + bytes(4 * BLOCK), (4 * BLOCK + 1,))
    reader = memory.counted()
    assert not all_zero(reader, record.range)
    assert reader.bytes_read == BLOCK


FACTORS = (1.5, 3.0, 0.75, 1.1, 0.3, 5.0, 1.25)


def pair(dtype: str, left: Array, right: Array) -> Pair:
    memory = Memory()
    return Pair(memory, memory.store("left", dtype, left), memory.store("right", dtype, right))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_an_inexact_factor_does_not_hide_the_exact_reverse_one(dtype: str, factor: float) -> None:
    """``left`` was rounded from ``right``: no factor gives ``right`` back but to an ulp, and the reverse is exact."""
    right = bits_of(normal(0, (24, 64)), dtype)
    left = bits_of(values_of(right, dtype) * factor, dtype)
    tensors = pair(dtype, left, right)
    hidden, scaled = _fit(tensors, Bounds(), None), scaling(tensors)
    assert hidden is not None and (hidden.exact, hidden.max_ulp) == (False, 1)
    assert scaled is not None and (scaled.exact, scaled.max_ulp) == (True, 0)
    assert (scaled.pair.left.name, scaled.pair.right.name) == ("right", "left")
    again = bits_of(values_of(right, dtype) * scaled.factor, dtype)
    assert np.array_equal(again, left)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_an_exact_factor_ends_the_search(dtype: str) -> None:
    """Both directions of a power of two are exact: the first one is reported."""
    left = bits_of(normal(0, (24, 64)), dtype)
    scaled = scaling(pair(dtype, left, bits_of(values_of(left, dtype) * 8, dtype)))
    assert scaled is not None and (scaled.exact, scaled.factor, scaled.pair.left.name) == (True, 8.0, "left")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_of_two_inexact_factors_the_first_one_counts(dtype: str) -> None:
    """Both sides were rounded: the claim is about ``right``, off by one ulp."""
    middle = normal(0, (24, 64))
    left, right = bits_of(middle * 0.7, dtype), bits_of(middle * 1.9, dtype)
    scaled = scaling(pair(dtype, left, right))
    assert scaled is not None and (scaled.exact, scaled.max_ulp, scaled.pair.left.name) == (False, 1, "left")


def byte_pair(left: bytes, right: bytes) -> tuple[Memory, ByteRange, ByteRange]:
    memory = Memory()
    ranges = [memory.store(name, "U8", data, (len(data),)).range for name, data in (("a", left), ("b", right))]
    return memory, ranges[0], ranges[1]


@settings(deadline=None)
@given(st.binary(max_size=64), st.binary(max_size=64))
def test_equality_is_that_of_bytes(left: bytes, right: bytes) -> None:
    assert equal(*byte_pair(left, right)) == (left == right)
    assert equal(*byte_pair(left, bytes(left)))


@settings(deadline=None)
@given(st.integers(0, 3 * BLOCK + 17), st.data())
def test_a_single_changed_byte_is_found_wherever_it_is(size: int, data: st.DataObject) -> None:
    left = bytes(size)
    assert equal(*byte_pair(left, left))
    if size:
        index = data.draw(st.integers(0, size - 1))
        right = bytearray(left)
        right[index] = 1
        assert not equal(*byte_pair(left, bytes(right)))
        assert common_prefix(*byte_pair(left, bytes(right))) == index


def test_an_equal_pair_is_read_whole_and_its_samples_twice() -> None:
    memory, a, b = byte_pair(bytes(5 * BLOCK + 3), bytes(5 * BLOCK + 3))
    reader = memory.counted()
    assert equal(reader, a, b)
    assert reader.bytes_read == 2 * (a.size + 3 * SAMPLE)


def test_a_small_equal_pair_is_read_once() -> None:
    memory, a, b = byte_pair(bytes(6 * SAMPLE - 1), bytes(6 * SAMPLE - 1))
    reader = memory.counted()
    assert equal(reader, a, b)
    assert reader.bytes_read == 2 * a.size


def test_a_difference_in_a_sample_is_found_with_few_bytes() -> None:
    size = 8 * BLOCK
    for index in (0, size - 1, size // 2):
        right = bytearray(size)
        right[index] = 1
        memory, a, b = byte_pair(bytes(size), bytes(right))
        reader = memory.counted()
        assert not equal(reader, a, b)
        assert reader.bytes_read < 64 * 1024


def test_different_sizes_and_one_range_need_no_reading() -> None:
    memory, a, b = byte_pair(bytes(10), bytes(11))
    reader = memory.counted()
    assert not equal(reader, a, b)
    assert equal(reader, a, a)
    assert reader.reads == 0


def test_common_prefix_of_different_sizes_stops_at_the_shorter() -> None:
    assert common_prefix(*byte_pair(bytes(BLOCK + 5), bytes(2 * BLOCK))) == BLOCK + 5
    assert common_prefix(*byte_pair(b"", b"x")) == 0


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
    memory, a, _ = byte_pair(data, b"")
    assert b"".join(bytes(block) for block in stream(memory, a, length=100)) == data
