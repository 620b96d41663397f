"""The best linear map U ≈ E·M + 1cᵀ from the d × d moments, and whether M is orthogonal, SPD or neither."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table
from tieconv.analysis.relation.grams import Grams
from tieconv.analysis.relation.rounding_tolerance import tolerance
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record

ENOUGH = 2
"""Rows for each column below which any table is nearly a linear map of any other."""


@record
class Linear:
    """U_v ≈ E_v·map + shift. ``r2`` is the share of the centred energy of U that it explains, ``adjusted`` the same
    without what chance explains: 0 for unrelated tables whatever V and d are.
    """

    map: Array
    shift: Array
    r2: float
    adjusted: float

    def apply(self, e: Array) -> Array:
        """Û for rows of E."""
        mapped: Array = e @ self.map + self.shift
        return mapped


def fit_linear(grams: Grams) -> Linear | None:
    """The least-squares map; ``None`` where there are too few rows to judge one."""
    rows, width = grams.rows, grams.width
    if rows < ENOUGH * width + 2:
        return None
    matrix = solve(grams.ee, grams.eu)
    whole = float(np.trace(grams.uu))
    explained = float(np.einsum("ij,ij->", matrix, grams.eu))
    r2 = min(max(explained / whole, 0.0), 1.0) if whole > 0 else 0.0
    adjusted = 1 - (1 - r2) * (rows - 1) / (rows - width - 1)
    return Linear(matrix, grams.means[1] - grams.means[0] @ matrix, r2, adjusted)


def solve(gram: Array, cross: Array, least: float = 1e-12) -> Array:
    """gram⁻¹·cross, (d, d'), by the eigenvectors of ``gram`` (d, d).

    Directions with less than ``least`` of the largest eigenvalue are only rounding, and left out.
    """
    values, vectors = np.linalg.eigh(gram)
    significant = (values > values[-1] * least) & (values > 0)
    basis = vectors[:, significant]
    solution: Array = basis @ ((basis.T @ cross) / values[significant][:, None])
    return solution


def fit_without(grams: Grams, e: Array, u: Array) -> Linear | None:
    """The map that these rows, (n, d) of each table, had no part in: to be judged on them."""
    e, u = e - grams.means[0], u - grams.means[1]
    rest = Grams(grams.rows - len(e), grams.ee - e.T @ e, grams.uu - u.T @ u, grams.eu - e.T @ u, grams.means)
    return fit_linear(rest)


def shape(linear: Linear, grams: Grams, residual: float, most: float) -> tuple[Kinship, float]:
    """Which kind of map M is: orthogonal (up to one factor), symmetric positive definite, or general.

    M is of a kind where replacing it by the nearest map of that kind moves the rows of Û by no more than twice what
    rounding and the residual leave open. The second value is the factor (orthogonal) or the condition number.
    """
    matrix, whole = linear.map, float(np.trace(grams.uu))
    open_ = 2 * most + 0.1 * residual
    left, sizes, right = np.linalg.svd(matrix)
    rotation = sizes.mean() * (left @ right)
    if _moved(matrix - rotation, grams.ee, whole) <= open_:
        return Kinship.ORTHOGONAL, float(sizes.mean())
    condition = float(sizes[0] / sizes[-1]) if sizes[-1] > 0 else float("inf")
    even = (matrix + matrix.T) / 2
    if _moved(matrix - even, grams.ee, whole) <= open_ and np.linalg.eigvalsh(even)[0] > 0:
        return Kinship.SPD, condition
    return Kinship.LINEAR, condition


def _moved(change: Array, ee: Array, whole: float) -> float:
    """‖E·change‖ / ‖U‖, centred."""
    return float(np.sqrt(max(np.einsum("ij,ij->", change, ee @ change), 0.0) / whole)) if whole else 0.0


def residual_on(embed: Table, head: Table, linear: Linear, rows: Array) -> float:
    """‖U − Û‖ / ‖U‖ on the rows, by differences: the moments alone lose half the digits."""
    u = head.pick(rows)
    left, whole = float(np.linalg.norm(u - linear.apply(embed.pick(rows)))), float(np.linalg.norm(u))
    return left / whole if whole else float("inf")  # of rows of zeros nothing can be said


def linear_tolerance(linear: Linear, grams: Grams, energies: tuple[Array, float], kinds: tuple[str, str]) -> float:
    """The residual that rounding explains after the map."""
    gains = np.einsum("ij,ij->i", linear.map, linear.map)
    # Summing products in float32 leaves an error of its own in the map.
    return max(tolerance(kinds, energies, gains, grams.rows, grams.width), 1e-5)
