"""Fit the linear map U ≈ E·M + 1cᵀ from the d × d moments. Test whether M is orthogonal or SPD."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import Moments
from tieconv.analysis.model.tables import Array, Table
from tieconv.analysis.relation.grams import WIDEST, Grams, gram
from tieconv.analysis.relation.rounding_tolerance import tolerance
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record

ENOUGH = 2
"""The fewest rows for each column. With fewer, any table is nearly a linear map of any other."""

ALONE = 1e-9
"""1 − leverage up to which a direction belongs to the left-out rows alone."""


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


@record
class Fitted:
    """The least-squares map with the evidence for it.

    ``held_out`` is Û of some rows, (n, d), by the map fitted without them. It is ``None`` if too few rows are left.
    ``least`` is the smallest eigenvalue of EᵀE.
    """

    linear: Linear
    held_out: Array | None
    grams: Grams
    least: float

    def surely_below(self, adjusted: float) -> bool:
        """Return whether exact sums also give an adjusted R² below ``adjusted``.

        R = √R² is ‖G^-½·C‖ / ‖U‖ with G = EᵀE and C = EᵀU. By the bound of `gram`, G is off by at most η·G, with
        η = γ·‖E‖²/λ for its smallest eigenvalue λ. C is off by at most γ·‖E‖·‖U‖. So R moves by at most
        (1/√(1 − η) − 1)·R + γ·‖E‖/√(λ·(1 − η)).
        """
        rows, width, gamma = self.grams.rows, self.grams.width, self.grams.error
        energy = float(np.trace(self.grams.ee)) * (1 + gamma)
        if not self.least > 0 or gamma * energy >= self.least / 2:
            return False
        eta = gamma * energy / self.least
        slack = 1 / np.sqrt(1 - eta)
        largest = slack * np.sqrt(self.linear.r2) + slack * gamma * np.sqrt(energy / self.least)
        return bool(1 - (1 - min(largest, 1.0) ** 2) * (rows - 1) / (rows - width - 1) < adjusted)


def fit_rows(embed: Table, head: Table, moments: Moments, rows: tuple[Array, Array], close: float) -> Fitted | None:
    """Fit the linear map, and predict ``rows`` of the head from a fit without them. ``None`` if too wide or too short.

    Products of two 16-bit types are summed in float32. Others are too if the bound of their error proves that the
    adjusted R² is below ``close``. Otherwise they are summed in float64.
    """
    if embed.width > WIDEST:
        return None
    short = max(embed.form.width, head.form.width) == 2
    fitted = fit_linear(gram(embed, head, moments, single=True), rows)
    if fitted is not None and (short or fitted.surely_below(close)):
        return fitted
    fitted = None  # frees three d × d matrices
    return fit_linear(gram(embed, head, moments, single=False), rows)


def fit_linear(grams: Grams, rows: tuple[Array, Array]) -> Fitted | None:
    """Return the least-squares map, and its leave-out predictions for ``rows`` (n, d) of E and U.

    ``None`` if there are too few rows, or if the products are not finite.
    """
    count, width = grams.rows, grams.width
    if count < ENOUGH * width + 2 or not (np.isfinite(grams.ee).all() and np.isfinite(grams.eu).all()):
        return None
    inverse = Inverse.of(grams.ee)
    matrix = inverse.times(grams.eu)
    explained = float(np.einsum("ij,ij->", matrix, grams.eu))
    r2 = min(max(explained / grams.whole, 0.0), 1.0) if grams.whole > 0 else 0.0
    adjusted = 1 - (1 - r2) * (count - 1) / (count - width - 1)
    linear = Linear(matrix, grams.means[1] - grams.means[0] @ matrix, r2, adjusted)
    return Fitted(linear, _held_out(inverse, linear, grams, *rows), grams, inverse.least)


def _held_out(inverse: Inverse, linear: Linear, grams: Grams, e: Array, u: Array) -> Array | None:
    """Return Û of these rows, (n, d), by the map fitted without them. So a test on them is fair.

    Without the rows, the errors are (I − H)⁻¹ times the errors of the whole fit, with their leverages H = E·G⁻¹·Eᵀ.
    A direction that only these rows have is not predicted.
    """
    if grams.rows - len(e) < ENOUGH * grams.width + 2:
        return None
    leverages = inverse.products(e - grams.means[0])
    values, vectors = np.linalg.eigh(np.eye(len(e)) - leverages)
    errors = vectors.T @ (u - linear.apply(e))
    alone = values < ALONE
    errors = errors / np.where(alone, 1.0, values)[:, None]
    errors[alone] = (vectors.T @ (u - grams.means[1]))[alone]
    held_out: Array = u - vectors @ errors
    return held_out


@record
class Inverse:
    """The inverse of a symmetric matrix (d, d) on its significant eigenvectors: ``values`` (r,), ``basis`` (d, r).

    ``least`` is the smallest eigenvalue of all.
    """

    values: Array
    basis: Array
    least: float

    @classmethod
    def of(cls, matrix: Array, least: float = 1e-12) -> Inverse:
        """Invert a matrix. Directions with less than ``least`` of the largest eigenvalue are rounding, and ignored."""
        values, vectors = np.linalg.eigh(matrix)
        first = int(np.searchsorted(values, max(values[-1] * least, 0.0), "right"))
        return cls(values[first:], vectors[:, first:], float(values[0]))

    def times(self, cross: Array) -> Array:
        """Return the inverse times ``cross`` (d, d')."""
        inner = self.basis.T @ cross
        inner /= self.values[:, None]
        product: Array = self.basis @ inner
        return product

    @property
    def root(self) -> Array:
        """A matrix L (d, r) with L·Lᵀ equal to the matrix on its significant eigenvectors."""
        product: Array = self.basis * np.sqrt(self.values)
        return product

    def products(self, rows: Array) -> Array:
        """Return ``rows``·inverse·``rows``ᵀ, (n, n) for ``rows`` (n, d)."""
        inner = rows @ self.basis
        inner /= np.sqrt(self.values)
        product: Array = inner @ inner.T
        return product


def shape(linear: Linear, grams: Grams, residual: float, most: float) -> tuple[Kinship, float]:
    """Return the kind of the map M: orthogonal (up to one factor), symmetric positive definite, or general.

    The nearest map of the kind replaces M. The kind fits if this moves Û by at most 2·``most`` + 0.1·``residual``,
    relative to ‖U‖. The second value is the factor (orthogonal) or the condition number.
    """
    matrix, whole = linear.map, grams.whole
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


def relative_residual(u: Array, predicted: Array) -> float:
    """Return ‖U − Û‖ / ‖U‖ of rows (n, d), from differences, because the moments lose half the digits."""
    left, whole = float(np.linalg.norm(u - predicted)), float(np.linalg.norm(u))
    return left / whole if whole else float("inf")  # rows of zeros have no residual


def linear_tolerance(linear: Linear, grams: Grams, energies: tuple[Array, float], kinds: tuple[str, str]) -> float:
    """Return the residual that rounding explains after the map."""
    gains = np.einsum("ij,ij->i", linear.map, linear.map)
    # Sums of products in float32 add an error to the map.
    return max(tolerance(kinds, energies, gains, grams.rows, grams.width), 1e-5)
