"""Which side of a scaled pair is the rounded one: an exact factor counts before one that is off by an ulp."""

from __future__ import annotations

import numpy as np
import pytest

from tieconv.inspection.numeric.bits import Pair
from tieconv.inspection.numeric.rows import Scaling, _first_bounds, _fit, scaling

from .stored import Array, Memory, bits_of, normal, values_of

FACTORS = (1.5, 3.0, 0.75, 1.1, 0.3, 5.0, 1.25)


def pair(dtype: str, left: Array, right: Array) -> Pair:
    memory = Memory()
    return Pair(memory, memory.store("left", dtype, left), memory.store("right", dtype, right))


def forward(tensors: Pair) -> Scaling | None:
    """The best claim that ``right`` is a multiple of ``left``, whatever the other direction gives."""
    return _fit(tensors, _first_bounds(tensors), None)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_an_inexact_factor_does_not_hide_the_exact_reverse_one(dtype: str, factor: float) -> None:
    """``left`` was rounded from ``right``: no factor gives ``right`` back but to an ulp, and the reverse is exact."""
    right = bits_of(normal(0, (24, 64)), dtype)
    left = bits_of(values_of(right, dtype) * factor, dtype)
    tensors = pair(dtype, left, right)
    hidden, scaled = forward(tensors), scaling(tensors)
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
