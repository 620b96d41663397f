"""Collect the numbers that a torch model computes with: epsilons, scales, soft caps and rotary frequencies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.weights.folds import factors
from tieconv.reference import Reference

_SCALE = re.compile("scal|multipl|cap")
"""Entries of a config that may be written as whole numbers and are multiplied all the same."""
ACTIVATIONS = (0.044715, math.sqrt(2 / math.pi), math.sqrt(0.5), math.sqrt(2), 1.702)
"""Numbers of GELU and its approximations."""


@record
class ModelNumbers:
    """``epsilons`` are those of norms, ``factors`` all other numbers, ``vectors`` the buffers with one axis by name."""

    __eq__ = object.__eq__  # compare by identity: arrays have no useful equality
    __hash__ = object.__hash__

    epsilons: frozenset[float]
    factors: tuple[float, ...]
    vectors: Mapping[str, npt.NDArray[np.float64]]


def model_numbers(reference: Reference, config: Any) -> ModelNumbers:
    """Return the numbers of the loaded model, of its config, and those that follow from its sizes."""
    model = reference.model
    own = {value for module in model.modules() for value in vars(module).values() if isinstance(value, float)}
    scalars = {float(buffer) for buffer in model.buffers() if buffer.numel() == 1 and buffer.is_floating_point()}
    known = {*own, *scalars, *factors(config), *_entries(config)} - reference.epsilons
    vectors = {
        name: buffer.double().numpy()
        for name, buffer in model.named_buffers()
        if buffer.ndim == 1 and buffer.numel() > 1 and buffer.is_floating_point()
    }
    return ModelNumbers(reference.epsilons, tuple(sorted({*ACTIVATIONS, *_forms(known)})), vectors)


def _entries(config: Any) -> Iterator[float]:
    for name, value in config.to_dict().items():
        whole = isinstance(value, int) and not isinstance(value, bool) and _SCALE.search(name)
        if isinstance(value, float) or whole:
            yield float(value)


def _forms(known: set[float]) -> Iterator[float]:
    """Yield each positive number, its root, and the inverses: exporters divide, and split an attention scale."""
    for value in known:
        if value > 0 and math.isfinite(value) and value != 1:
            yield from (value, 1 / value, math.sqrt(value), 1 / math.sqrt(value))
