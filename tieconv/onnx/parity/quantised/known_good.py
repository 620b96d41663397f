"""Quantise a matrix as the simplest correct quantiser does: round to nearest, with the scheme of the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_GROUPS = 32
"""Fewest groups whose median says how a quantiser works."""
_MEDIAN = 2.0
"""Largest median of a correct quantiser. ONNX Runtime's GPTQ measures 1.4; zero points that are off by one, 3.5."""


def round_to_nearest(weight: Floats, bits: int, group: int, *, symmetric: bool) -> Floats:
    """Return the dequantised form of ``weight`` (R × C). ``group`` consecutive elements share a scale."""
    parts = _groups(weight, group)
    levels = 1 << bits
    if symmetric:
        largest = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1)
        scale, zero = largest / -(levels >> 1), np.full_like(largest, levels >> 1)
    else:
        low, high = np.minimum(parts.min(1, keepdims=True), 0), np.maximum(parts.max(1, keepdims=True), 0)
        scale = (high - low) / (levels - 1)
        zero = np.round(np.divide(-low, scale, out=np.zeros_like(low), where=scale != 0))
    codes = np.round(np.divide(parts, scale, out=np.zeros_like(parts), where=scale != 0)) + zero
    made = (codes.clip(0, levels - 1) - zero) * scale
    return _whole(made, weight.shape, group)


def worst_group(weight: Floats, graph: Floats, good: Floats, group: int) -> float:
    """Return the largest RMS error of a group of ``graph`` over that of ``good``, in units of the median.

    A group may be exact by chance. So the error of ``good`` counts as at least a quarter of its average. The median is
    the unit only between 1 and 2, and with at least 32 groups. GPTQ has larger errors in all groups than round to
    nearest, because later weights correct earlier ones.
    """
    ours, theirs = (np.sqrt(np.square(_groups(made - weight, group)).mean(1)) for made in (graph, good))
    least = float(theirs.mean()) / 4
    if not least:
        return 0.0 if not ours.any() else float("inf")
    quotients = ours / np.maximum(theirs, least)
    median = float(np.median(quotients))
    unit = median if len(quotients) >= _GROUPS and 1 < median <= _MEDIAN else 1.0
    return float(quotients.max()) / unit


def relative_error(weight: Floats, made: Floats) -> float:
    """Return the RMS of the error over the RMS of the weight."""
    size = float(np.sqrt(np.square(weight).mean()))
    return float(np.sqrt(np.square(made - weight).mean())) / size if size else 0.0


def _groups(weight: Floats, group: int) -> Floats:
    """Return the elements by group (groups × elements). The last group of a row is filled with zeros."""
    rows, columns = weight.shape
    if group >= weight.size:
        return weight.reshape(1, -1)
    filled = np.zeros((rows, -(-columns // group) * group))
    filled[:, :columns] = weight
    return filled.reshape(-1, group)


def _whole(parts: Floats, shape: tuple[int, ...], group: int) -> Floats:
    rows, columns = shape
    if group >= rows * columns:
        return parts.reshape(shape)
    return parts.reshape(rows, -1)[:, :columns]
