"""Series of numbers to plot, at most `POINTS` of them, evenly spaced with both ends."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array
from tieconv.checkpoint.results.analysis import POINTS


def points(values: Array) -> tuple[float, ...]:
    """Return the values, or `POINTS` of them."""
    if len(values) > POINTS:
        values = values[np.linspace(0, len(values) - 1, POINTS).astype("i8")]
    return tuple(float(f"{value:.6g}") for value in values)


def ranges(rows: Array, most: int = 16) -> list[list[int]]:
    """Return ascending rows as ranges [first, last + 1], at most ``most`` of them."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    return [[int(run[0]), int(run[-1]) + 1] for run in runs[:most]]
