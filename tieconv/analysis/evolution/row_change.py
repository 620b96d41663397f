"""Measure how far the rows of a table moved: the mean cosine of each row with its earlier self. Imports numpy."""

from __future__ import annotations

from math import sqrt

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.checkpoint.value_type import record


@record
class RowChange:
    """The mean cosine of rows with their earlier values, its standard error, and the number of rows.

    ``floor`` is the mean cosine of a row with the earlier values of another row, over all pairs.
    """

    cosine: float
    floor: float
    error: float
    rows: int


def row_change(earlier: Table, now: Table, used: Array | None) -> RowChange | None:
    """Compare two tables of one shape row by row, not centred; ``None`` if fewer than two rows have a direction.

    ``used`` (rows,) chooses rows. A row of zeros, or with a number that is not finite, does not count.
    """
    cosines: list[Array] = []
    sums = np.zeros((2, now.width))
    for start, stop in spans(now.rows, now.width):
        first, second = (_units(table.singles(start, stop)) for table in (earlier, now))
        good = np.isfinite(first[:, 0]) & np.isfinite(second[:, 0])
        if used is not None:
            good &= used[start:stop]
        first, second = first[good], second[good]
        cosines.append(np.einsum("ij,ij->i", first, second).astype(np.float64))
        sums += first.sum(0, dtype=np.float64), second.sum(0, dtype=np.float64)
    values = np.concatenate(cosines)
    rows = len(values)
    if rows < 2:
        return None
    floor = (float(sums[0] @ sums[1]) - float(values.sum())) / (rows * (rows - 1))
    return RowChange(float(values.mean()), floor, float(values.std()) / sqrt(rows), rows)


def _units(rows: Array) -> Array:
    """Return the rows (n, d) with length 1, all NaN for a row without a direction."""
    with np.errstate(all="ignore"):
        scale = np.abs(rows).max(axis=1, keepdims=True)
        rows = rows / scale  # squares of very long or short rows leave the range of float32
        units: Array = rows / np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    units[~np.isfinite(units).all(axis=1)] = np.nan
    return units
