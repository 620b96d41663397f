"""Powers of two and the mean of two tensors, against exact arithmetic."""

from __future__ import annotations

import math
import os
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.patience import examples
from tieconv.checkpoint.write_plan import Averaged, OutputTensor, OutputWeights, Plan, Promises
from tieconv.errors import RefusedError
from tieconv.execute import arithmetic
from tieconv.execute.arithmetic import floats, midpoints, rounded, scaled
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target

from . import models
from .test_verify import expect, flip

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


WIDTHS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}


def nearest(exact: Fraction, dtype: str) -> set[int]:
    """The encodings, sign aside, that are nearest to ``exact``; of two the even one."""
    exponent_bits, fraction_bits = SHAPES[dtype]
    low, high = 0, ((1 << exponent_bits) - 1) << fraction_bits  # magnitudes; the last is the first that is not finite
    target = abs(exact)
    while high - low > 1:
        middle = (low + high) // 2
        found = value(middle, dtype)
        assert found is not None
        low, high = (middle, high) if found <= target else (low, middle)
    below, above = value(low, dtype), value(high, dtype)
    assert below is not None
    if above is None or target - below < above - target:
        return {low}
    return {high} if target - below > above - target else {low if low % 2 == 0 else high}


def mean(first: bytes, second: bytes, dtype: str) -> bytes:
    return rounded(midpoints(floats(first, dtype), floats(second, dtype)), dtype)


@settings(max_examples=examples(600), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(sorted(SHAPES)))
def test_the_mean_is_rounded_once(data: st.DataObject, dtype: str) -> None:
    """Of any two finite numbers: the encoding nearest to (a + b) / 2, ties to even, never an overflow."""
    width = WIDTHS[dtype]
    finite = st.integers(0, (1 << 8 * width) - 1).filter(lambda bits: value(bits, dtype) is not None)
    one = data.draw(finite)
    near = (
        st.integers(-9, 9)
        .map(lambda step: max(0, one + step))
        .filter(lambda bits: bits < 1 << 8 * width and value(bits, dtype) is not None)
    )
    other = data.draw(st.one_of(finite, near))
    exact = (value(one, dtype) + value(other, dtype)) / 2  # type: ignore[operator]
    found = int.from_bytes(mean(one.to_bytes(width, "little"), other.to_bytes(width, "little"), dtype), "little")
    sign = 1 << (8 * width - 1)
    assert found & ~sign in nearest(exact, dtype)
    if exact:
        assert bool(found & sign) == (exact < 0)


@pytest.mark.parametrize("dtype", sorted(SHAPES))
def test_the_mean_of_equal_numbers_is_the_number(dtype: str) -> None:
    """Bit for bit: subnormals, the largest number and the sign of zero too."""
    block = np.random.default_rng(0).bytes(8 * 4096)
    width = WIDTHS[dtype]
    kept = b"".join(
        block[at : at + width]
        for at in range(0, len(block), width)
        if value(int.from_bytes(block[at : at + width], "little"), dtype) is not None
    )
    largest = (((1 << SHAPES[dtype][0]) - 1) << SHAPES[dtype][1]) - 1
    kept += b"".join(bits.to_bytes(width, "little") for bits in (0, 1, largest, 1 << (8 * width - 1)))
    assert mean(kept, kept, dtype) == kept


def averaging(source: Path, first: bytes, second: bytes, dtype: str) -> Plan:
    """The plan that stores the mean in place of both."""
    source.mkdir()
    shape = (len(first) // WIDTHS[dtype],)
    path = source / "model.safetensors"
    models.write_weights(path, {models.EMBED: (dtype, shape, first), models.HEAD: (dtype, shape, second)})
    embed, head = models.checkpoint(source).files[0].tensors
    content = Averaged(embed.range, head.range, dtype, (embed.name, head.name))
    tensor = OutputTensor(models.EMBED, dtype, shape, content)
    return models.plan_of(source, [OutputWeights(path.name, (tensor,), None)], promises=Promises(None, ()))


@pytest.mark.parametrize("dtype", sorted(SHAPES))
def test_many_blocks(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written block by block as all at once."""
    monkeypatch.setattr(arithmetic, "BLOCK", 1024)
    count = 3001
    first, second = (rounded(np.random.default_rng(seed).standard_normal(count), dtype) for seed in (1, 2))
    plan = averaging(tmp_path / "source", first, second, dtype)
    execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert models.tensor_bytes(tmp_path / "out" / "model.safetensors") == {models.EMBED: mean(first, second, dtype)}
    assert plan.bytes_read == 2 * len(first) and plan.bytes_written == len(first)


@pytest.mark.parametrize("verify", ["full", "structure"])
@pytest.mark.parametrize("position", [-1, -70_000])
def test_the_mean_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: str, position: int) -> None:
    """One wrong bit anywhere is found, whatever is verified."""
    first, second = models.numbers(50_000, 3), models.numbers(50_000, 4)
    plan = averaging(tmp_path / "source", first, second, "BF16")
    error = expect(plan, tmp_path / "out", monkeypatch, flip("model.safetensors", position), verify)
    assert models.EMBED in error.message


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_has_no_mean(tmp_path: Path, bad: float, side: int) -> None:
    """Refused by the name of the tensor, and nothing is left."""
    blocks = [struct.pack("<3f", 1, 2, 3), struct.pack("<3f", 4, 5, 6)]
    blocks[side] = struct.pack("<3f", 1, bad, 3)
    plan = averaging(tmp_path / "source", *blocks, "F32")
    with pytest.raises(RefusedError, match=(models.EMBED, models.HEAD)[side]):
        execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]
