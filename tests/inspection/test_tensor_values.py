"""Zero biases, largest magnitudes and NaN, against rational arithmetic."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.weight_file import BITS
from tieconv.inspection.equality import all_zero, bias_summary, has_nan
from tieconv.inspection.view_reader import BLOCK

from .stored import FLOAT_DTYPES, INFINITY, Array, Memory, value_of


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
