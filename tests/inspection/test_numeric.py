"""Conversions round once, ulp distances count representable values: against rational arithmetic."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieconv.checkpoint.weight_file import BITS
from tieconv.inspection.numeric.bits import FORMATS, convert, decode, encode, is_finite, is_nan, monotone, ulp_distance

from .stored import FLOAT_DTYPES, INFINITY, MANTISSA, bits_of, exact_bits, value_of, values_of

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
