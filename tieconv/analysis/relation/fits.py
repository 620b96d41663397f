"""Fit maps from E to U that act on each column separately: U_v ≈ g ⊙ E_v + c."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import Moments
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.rounding_tolerance import tolerance
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record

SURE = 16
"""The fewest rows for a meaningful fit."""

ABOVE_ROUNDING = 1e5
"""How much larger than its rounding error a residual must be to be taken from the moments."""


@record
class Fit:
    """U_v ≈ gains ⊙ E_v + shift, its residual ‖U − Û‖ / ‖U‖ over every row, and the most that rounding explains."""

    kind: Kinship
    gains: Array
    shift: Array
    residual: float
    tolerance: float

    @property
    def exact(self) -> bool:
        """Whether rounding explains the residual."""
        return self.residual <= self.tolerance


def column_fits(embed: Table, head: Table, moments: Moments, kinds: tuple[str, str]) -> tuple[Fit, ...]:
    """Fit the identity, gauge, scalar and diagonal maps, simplest first, and measure their residuals.

    Scalar and diagonal maps are fitted with and without a shift. Too few rows give no fits. The moments give a large
    residual without another pass. A small one is measured from differences.
    """
    if moments.count < SURE:
        return ()
    candidates = _candidates(moments)
    expanded = [_expanded(moments, gains, shift) for _, gains, shift in candidates]
    maps = [map_ for map_, square in zip(candidates, expanded, strict=True) if square is None]
    measured = iter(_residuals(embed, head, moments.finite, [map_[1:] for map_ in maps]) if maps else ())
    residuals = [next(measured) if square is None else square for square in expanded]
    energy = moments.energies[1]
    fits = []
    for (kind, gains, shift), residual in zip(candidates, residuals, strict=True):
        most = tolerance(kinds, (moments.squares[0], energy), gains**2, moments.count, moments.width)
        fits.append(Fit(kind, gains, shift, float(np.sqrt(residual / energy)) if energy else 0.0, most))
    return tuple(fits)


def _candidates(moments: Moments) -> list[tuple[Kinship, Array, Array]]:
    ones, zeros = np.ones(moments.width), np.zeros(moments.width)
    (mean_e, mean_u), count = moments.means, moments.count
    spread = moments.squares[0] - count * mean_e**2
    joint = moments.cross - count * mean_e * mean_u
    scalar = _ratio(moments.cross.sum(), moments.squares[0].sum()) * ones
    moved = _ratio(joint.sum(), spread.sum()) * ones
    diagonal, bent = _ratio(moments.cross, moments.squares[0]), _ratio(joint, spread)
    return [
        (Kinship.DRIFT, ones, zeros),
        (Kinship.GAUGE, ones, mean_u - mean_e),
        (Kinship.SCALAR, scalar, zeros),
        (Kinship.SCALAR, moved, mean_u - moved * mean_e),
        (Kinship.DIAGONAL, diagonal, zeros),
        (Kinship.DIAGONAL, bent, mean_u - bent * mean_e),
    ]


def _ratio(over: Array, under: Array) -> Array:
    """Return ``over / under``, with 0 for an empty column."""
    over, under = np.asarray(over, float), np.asarray(under, float)
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _expanded(moments: Moments, gains: Array, shift: Array) -> float | None:
    """Return ‖U − Û‖² from the moments, or ``None`` if cancellation may take more than about 10⁻⁵ of it.

    Each moment is a sum of n float64 products. So it is off by at most n·2⁻⁵³ of its sum of magnitudes. By
    Cauchy-Schwarz, these sums are at most ``largest`` for all terms together.
    """
    (e_squares, u_squares), (e_sums, u_sums), count = moments.squares, moments.sums, moments.count
    terms = u_squares + gains**2 * e_squares + count * shift**2
    terms = terms - 2 * gains * moments.cross - 2 * shift * (u_sums - gains * e_sums)
    square = float(terms.sum())
    lengths = np.sqrt(u_squares) + np.abs(gains) * np.sqrt(e_squares) + np.sqrt(count) * np.abs(shift)
    largest = float(np.square(lengths).sum())
    return square if square > ABOVE_ROUNDING * (count + len(gains)) * 2.0**-53 * largest else None


def _residuals(embed: Table, head: Table, finite: Array, maps: list[tuple[Array, Array]]) -> list[float]:
    """Return ‖U − Û‖² of each map, from differences to avoid cancellation."""
    squares = [0.0] * len(maps)
    for start, stop in spans(len(finite), embed.width):
        used = finite[start:stop]
        e, u = embed.values(start, stop)[used], head.values(start, stop)[used]
        for index, (gains, shift) in enumerate(maps):
            left = u - gains * e - shift
            squares[index] += float(np.einsum("ij,ij->", left, left))
    return squares
