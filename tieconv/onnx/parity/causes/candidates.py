"""Choose which numbers of the model to try in place of constants of the graph, the likeliest first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.causes.graph_constants import Constant, Floats
from tieconv.onnx.parity.causes.model_numbers import ModelNumbers

_FAR = math.log(100)
"""Largest quotient of a constant and the factor that is tried in its place, as a logarithm."""
_CLOSE = 2e-2
"""The same, as a relative difference, for a factor that the graph has elsewhere."""
_USUAL = frozenset({0.5, 1.0, 2.0, 3.0})
"""Numbers that formulas have. They are tried last, and only with factors up to twice as large or as small."""
_SCALED = {"Mul": 1.0, "Div": -1.0}
"""Operators that scale logits, with the power of the constant."""


@record
class Candidate:
    """A constant, the values to try, and a phrase that says what these values are."""

    __eq__ = object.__eq__  # compare by identity: arrays have no useful equality
    __hash__ = object.__hash__

    constant: Constant
    values: Floats
    source: str
    distance: float


def candidates(
    constants: Sequence[Constant], numbers: ModelNumbers, rounding: float, scale: float | None
) -> list[Candidate]:
    """Return all candidates, the likeliest first.

    ``rounding`` is the relative difference of equal numbers. ``scale`` is the factor that the logits lack, if one
    factor explains them.
    """
    single = [constant for constant in constants if not constant.values.ndim]
    epsilons = [constant for constant in single if constant.epsilon]
    scales = [constant for constant in single if not constant.epsilon]
    made = [
        *_vectors(constants, numbers, rounding),
        *_epsilons(epsilons, numbers.epsilons, rounding),
        *_factors(scales, numbers.factors, rounding),
        *(() if scale is None else _of_logits(scales, scale)),
    ]
    return sorted(made, key=lambda candidate: candidate.distance)


def _equal(first: float, second: float, rounding: float) -> bool:
    return math.isclose(first, second, rel_tol=rounding)


def _vectors(constants: Iterable[Constant], numbers: ModelNumbers, rounding: float) -> Iterator[Candidate]:
    """Yield buffers that the graph lacks, in place of each vector of their length."""
    vectors = [constant for constant in constants if constant.values.ndim]
    for name, values in numbers.vectors.items():
        alike = [constant for constant in vectors if constant.values.shape == values.shape]
        if not any(np.allclose(constant.values, values, rtol=rounding, atol=0) for constant in alike):
            for constant in alike:
                change = np.abs(constant.values - values).max() / np.abs(values).max()
                yield Candidate(constant, values, f"the model's {name}", float(change))


def _epsilons(constants: Iterable[Constant], own: frozenset[float], rounding: float) -> Iterator[Candidate]:
    """Yield the model's epsilons. An epsilon that one norm of the model has may be wrong in another."""
    for constant in constants:
        right = any(_equal(constant.number, epsilon, rounding) for epsilon in own)
        for epsilon in own:
            if not _equal(constant.number, epsilon, rounding):
                yield Candidate(constant, np.array(epsilon), "", 0.5 if right else 0.0)


def _factors(constants: Sequence[Constant], known: Iterable[float], rounding: float) -> Iterator[Candidate]:
    """Yield factors of the model in place of constants that equal none. Far ones only if the graph lacks them."""
    factors = list(known)
    present = [f for f in factors if any(_equal(constant.number, f, rounding) for constant in constants)]
    for constant in constants:
        if constant.number < 0 or any(_equal(constant.number, factor, rounding) for factor in factors):
            continue
        far, later = (math.log(2), _FAR) if constant.number in _USUAL else (_FAR, 0.0)
        for factor in factors:
            quotient = abs(math.log(constant.number / factor))
            if quotient <= (_CLOSE if factor in present else far):
                yield Candidate(constant, np.array(factor), "", later + quotient)


def _of_logits(constants: Iterable[Constant], scale: float) -> Iterator[Candidate]:
    """Yield the value with which the logits would be the reference's, for each constant that multiplies or divides."""
    for constant in constants:
        if constant.operator in _SCALED:
            value = constant.number * scale ** _SCALED[constant.operator]
            yield Candidate(constant, np.array(value), "the value that the logits suggest", abs(math.log(scale)))
