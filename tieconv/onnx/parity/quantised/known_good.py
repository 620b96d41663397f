"""Quantise a matrix as the simplest correct quantiser does: round to nearest, with the scheme of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record

Floats = npt.NDArray[np.float64]
Matrix = npt.NDArray[Any]
"""R × C, of any float type; it is read by blocks of rows, and computed with in float64."""
_STEP = 1 << 22
"""Elements in a block of rows."""
_GROUPS = 32
"""Fewest groups whose median says how a quantiser works."""
_MEDIAN = 2.0
"""Largest median of a correct quantiser. ONNX Runtime's GPTQ measures 1.4; zero points that are off by one, 3.5."""


@record
class Rounding:
    """How a quantiser rounds a matrix. ``group`` consecutive elements of a row share a scale, or all elements."""

    bits: int
    group: int
    symmetric: bool


@record
class WeightErrors:
    """The relative RMS error of a graph's matrix and of the known-good one, and `worst_quotient`."""

    graph: float
    known_good: float
    worst: float


def round_to_nearest(weight: Matrix, rounding: Rounding) -> Matrix:
    """Return the dequantised form of ``weight``, in its type."""
    made = np.empty(weight.shape, weight.dtype)
    for rows, _, good in _rounded_blocks(weight, rounding):
        made[rows] = good.reshape(len(made[rows]), -1)[:, : weight.shape[1]]
    return made


def compare_errors(weight: Matrix, graph: Matrix, rounding: Rounding) -> WeightErrors:
    """Compare the values of a graph with ``weight``, beside those of `round_to_nearest`."""
    size, ours, theirs = 0.0, list[Floats](), list[Floats]()
    for rows, parts, good in _rounded_blocks(weight, rounding):
        made = _groups(graph[rows].astype(np.float64), rounding.group)
        size += float(np.square(parts).sum())
        ours.append(np.square(made - parts).sum(1))
        theirs.append(np.square(good - parts).sum(1))
    # If all elements share a scale, they are one group, whatever the blocks are.
    join = (lambda sums: np.array([np.concatenate(sums).sum()])) if rounding.group >= weight.size else np.concatenate
    sums = [join(side) for side in (ours, theirs)]
    error, known_good = (float(np.sqrt(side.sum() / size)) if size else 0.0 for side in sums)
    return WeightErrors(error, known_good, worst_quotient(*(np.sqrt(side / rounding.group) for side in sums)))


def worst_quotient(ours: Floats, theirs: Floats) -> float:
    """Return the largest RMS error of a group over that of the known-good quantiser, in units of the median.

    A group may be exact by chance. So an error of ``theirs`` counts as at least a quarter of their average. The median
    is the unit only between 1 and 2, and with at least 32 groups. GPTQ has larger errors in all groups than round to
    nearest, because later weights correct earlier ones.
    """
    least = float(theirs.mean()) / 4
    if not least:
        return 0.0 if not ours.any() else float("inf")
    quotients = ours / np.maximum(theirs, least)
    median = float(np.median(quotients))
    unit = median if len(quotients) >= _GROUPS and 1 < median <= _MEDIAN else 1.0
    return float(quotients.max()) / unit


def _rounded_blocks(weight: Matrix, rounding: Rounding) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield blocks of rows, their elements by group, and the same elements rounded."""
    shared = _grid(weight.reshape(1, -1), rounding) if rounding.group >= weight.size else None
    step = max(1, _STEP // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        parts = _groups(weight[rows].astype(np.float64), rounding.group)
        scale, zero = shared or _grid(parts, rounding)
        codes = np.round(np.divide(parts, scale, out=np.zeros_like(parts), where=scale != 0)) + zero
        yield rows, parts, (codes.clip(0, (1 << rounding.bits) - 1) - zero) * scale


def _grid(parts: Matrix, rounding: Rounding) -> tuple[Floats, Floats]:
    """Return the scale and the zero point of each group."""
    levels = 1 << rounding.bits
    if rounding.symmetric:
        largest = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1).astype(np.float64)
        return largest / -(levels >> 1), np.full_like(largest, levels >> 1)
    low, high = parts.min(1, keepdims=True).astype(np.float64), parts.max(1, keepdims=True).astype(np.float64)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = (high - low) / (levels - 1)
    return scale, np.round(np.divide(-low, scale, out=np.zeros_like(low), where=scale != 0))


def _groups(weight: Floats, group: int) -> Floats:
    """Return the elements by group (groups × elements). The last group of a row is filled with zeros."""
    rows, columns = weight.shape
    if group >= weight.size:
        return weight.reshape(1, -1)
    filled = np.zeros((rows, -(-columns // group) * group))
    filled[:, :columns] = weight
    return filled.reshape(-1, group)
