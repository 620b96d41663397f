"""Fit the linear map U ≈ E·M + 1cᵀ from the d × d moments. Test whether M is orthogonal or SPD."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table
from tieconv.analysis.relation.grams import Grams
from tieconv.analysis.relation.rounding_tolerance import tolerance
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record

ENOUGH = 2
"""The fewest rows for each column. With fewer, any table is nearly a linear map of any other."""


@record
class Linear:
    """The map U_v ≈ E_v·map + shift.

    ``r2`` is the share of the centred energy of U that it explains. ``adjusted`` is corrected for chance: about 0 for
    unrelated tables of any V and d.
    """

    map: Array
    shift: Array
    r2: float
    adjusted: float

    def apply(self, e: Array) -> Array:
        """Return Û for rows of E."""
        mapped: Array = e @ self.map + self.shift
        return mapped


def fit_linear(grams: Grams) -> Linear | None:
    """Return the least-squares map, or ``None`` if there are too few rows."""
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
    """Return gram⁻¹·cross, (d, d'), by the eigenvectors of ``gram`` (d, d).

    Directions with less than ``least`` of the largest eigenvalue are rounding, and are ignored.
    """
    values, vectors = np.linalg.eigh(gram)
    significant = (values > values[-1] * least) & (values > 0)
    basis = vectors[:, significant]
    solution: Array = basis @ ((basis.T @ cross) / values[significant][:, None])
    return solution


def fit_without(grams: Grams, e: Array, u: Array) -> Linear | None:
    """Fit the map without these rows, (n, d) of each table, so that a test on them is fair."""
    e, u = e - grams.means[0], u - grams.means[1]
    rest = Grams(grams.rows - len(e), grams.ee - e.T @ e, grams.uu - u.T @ u, grams.eu - e.T @ u, grams.means)
    return fit_linear(rest)


def shape(linear: Linear, grams: Grams, residual: float, most: float) -> tuple[Kinship, float]:
    """Return the kind of the map M: orthogonal (up to one factor), symmetric positive definite, or general.

    The nearest map of the kind replaces M. The kind fits if this moves Û by at most 2·``most`` + 0.1·``residual``,
    relative to ‖U‖. The second value is the factor (orthogonal) or the condition number.
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
    """Return ‖E·change‖ / ‖U‖, centred."""
    return float(np.sqrt(max(np.einsum("ij,ij->", change, ee @ change), 0.0) / whole)) if whole else 0.0


def residual_on(embed: Table, head: Table, linear: Linear, rows: Array) -> float:
    """Return ‖U − Û‖ / ‖U‖ on the rows, from differences, because the moments lose half the digits."""
    u = head.pick(rows)
    left, whole = float(np.linalg.norm(u - linear.apply(embed.pick(rows)))), float(np.linalg.norm(u))
    return left / whole if whole else float("inf")  # rows of zeros have no residual


def linear_tolerance(linear: Linear, grams: Grams, energies: tuple[Array, float], kinds: tuple[str, str]) -> float:
    """Return the residual that rounding explains after the map."""
    gains = np.einsum("ij,ij->i", linear.map, linear.map)
    # Sums of products in float32 add an error to the map.
    return max(tolerance(kinds, energies, gains, grams.rows, grams.width), 1e-5)
