"""Powers of two, exactly or not at all, against exact arithmetic."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patience import examples
from tieconv.errors import RefusedError
from tieconv.execute.arithmetic import scaled

SHAPES = {"F16": (5, 10), "BF16": (8, 7), "F32": (8, 23), "F64": (11, 52)}


def value(bits: int, dtype: str) -> Fraction | None:
    """The exact value, ``None`` for infinities and NaNs."""
    exponent_bits, fraction_bits = SHAPES[dtype]
    fraction, field = bits & ((1 << fraction_bits) - 1), (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    if field == (1 << exponent_bits) - 1:
        return None
    significand = fraction + (1 << fraction_bits if field else 0)
    power = max(field, 1) - ((1 << (exponent_bits - 1)) - 1) - fraction_bits
    sign = -1 if bits >> (exponent_bits + fraction_bits) else 1
    return sign * significand * Fraction(2) ** power


def encodable(number: Fraction, dtype: str) -> bool:
    """Whether ``number`` has an exact encoding."""
    exponent_bits, fraction_bits = SHAPES[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    unit = Fraction(2) ** (1 - bias - fraction_bits)
    if number == 0:
        return True
    if (number / unit).denominator != 1:
        return False
    significand = abs(number / unit).numerator
    odd = significand >> ((significand & -significand).bit_length() - 1)
    return odd.bit_length() <= fraction_bits + 1 and abs(number) < Fraction(2) ** (bias + 1)


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(sorted(SHAPES)))
def test_against_fractions(data: st.DataObject, dtype: str) -> None:
    """Exact where an exact product exists, refused where none does, special values unchanged."""
    width = (1 + sum(SHAPES[dtype])) // 8
    fields = 1 << SHAPES[dtype][0]
    bits = data.draw(st.integers(0, (1 << 8 * width) - 1))
    exponent = data.draw(st.one_of(st.integers(-8, 8), st.integers(-fields - 60, fields + 60)))
    before = value(bits, dtype)
    block = bits.to_bytes(width, "little")
    if before is not None and not encodable(before * Fraction(2) ** exponent, dtype):
        with pytest.raises(RefusedError):
            scaled(block, dtype, exponent)
        return
    after = int.from_bytes(scaled(block, dtype, exponent), "little")
    if before is None or before == 0:
        assert after == bits
    else:
        assert value(after, dtype) == before * Fraction(2) ** exponent


@pytest.mark.parametrize("exponent", [-3, 3])
def test_every_half(exponent: int) -> None:
    """All 65,536 half floats, in one block, against numpy's own arithmetic."""
    every = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        product = np.ldexp(every.view(np.float16), exponent)
        exact = np.ldexp(product, -exponent) == every.view(np.float16)
    good = every[exact & np.isfinite(product)]
    assert scaled(good.tobytes(), "F16", exponent) == np.ldexp(good.view(np.float16), exponent).tobytes()


def test_doubles() -> None:
    """A table of doubles."""
    numbers = [1.0, -2.5, math.pi, 0.0, -0.0, 2.0**-1022, math.inf]
    block = struct.pack("<7d", *numbers)
    assert struct.unpack("<7d", scaled(block, "F64", 4)) == tuple(number * 16 for number in numbers)


@pytest.mark.parametrize("dtype", ["I32", "F8_E4M3", "BOOL"])
def test_other_types(dtype: str) -> None:
    """Only floats that tieconv computes with are scaled."""
    with pytest.raises(RefusedError):
        scaled(b"\0" * 8, dtype, 1)
