"""Structured differences of two tables: one factor for each row, a low rank, equal rows or columns."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import Moments
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.rounding_tolerance import tolerance
from tieconv.checkpoint.value_type import record

HIGHEST_RANK = 128
"""The highest rank that is searched. Adapters merged into a head have 4 to 128."""

_OVERSAMPLED = 16
_PROBED = 1024
_NARROWEST = 8
"""The fewest columns for a test of row factors."""

SHARE = 0.1
"""Share of equal rows or columns above which tables are partly equal."""


@record
class EqualShare:
    """The number of equal ``rows`` and ``columns``; two types are compared after rounding. Zeros do not count."""

    rows: int
    of_rows: int
    columns: int
    of_columns: int

    @property
    def large(self) -> bool:
        """Whether the tables are partly equal."""
        return self.rows > SHARE * self.of_rows or self.columns > SHARE * self.of_columns


def equal_share(moments: Moments) -> EqualShare:
    """Count the equal rows and columns of two tables."""
    zeros = (moments.norms[0][: moments.rows] == 0) & (moments.norms[1][: moments.rows] == 0)
    empty = (moments.squares[0] == 0) & (moments.squares[1] == 0)
    rows, columns = ~moments.unequal & ~zeros, ~moments.unequal_columns & ~empty
    counts = (np.count_nonzero(marks) for marks in (rows, ~zeros, columns, ~empty))
    return EqualShare(*map(int, counts))


def row_factors(embed: Table, head: Table, moments: Moments, kinds: tuple[str, str]) -> tuple[float, Array] | None:
    """Return (residual, factors) if the head is the embedding with each row scaled, within rounding, else ``None``."""
    if moments.width < _NARROWEST:
        return None
    factors, left, scaled = np.ones(moments.rows), 0.0, np.zeros(moments.width)
    # Scaled rows of E are projections of rows of U, so their energy is at most that of U.
    largest = tolerance(kinds, (moments.squares[1], moments.energies[1]), np.ones(moments.width), *_shape(moments))
    for start, stop in spans(moments.rows, moments.width):
        used = moments.finite[start:stop]
        e, u = embed.values(start, stop)[used], head.values(start, stop)[used]
        joint, squares = np.einsum("ij,ij->i", e, u), np.einsum("ij,ij->i", e, e)
        gains = np.divide(joint, squares, out=np.zeros_like(joint), where=squares > 0)
        rest = u - gains[:, None] * e
        left += float(np.einsum("ij,ij->", rest, rest))
        scaled += (gains**2) @ (e * e)
        factors[np.flatnonzero(used) + start] = gains
        if _relative(left, moments) > largest:
            return None
    residual = _relative(left, moments)
    # Noise of the embedding passes through each row's factor, so it is summed already scaled.
    most = tolerance(kinds, (scaled, moments.energies[1]), np.ones(moments.width), *_shape(moments))
    return (residual, factors[moments.finite]) if residual <= most else None


def difference_rank(
    embed: Table, head: Table, moments: Moments, kinds: tuple[str, str]
) -> tuple[int, float, float] | None:
    """Return the smallest rank that explains head − embedding within rounding, else ``None``.

    With it come the residual, and the share of the difference's energy that a matrix of this rank explains.
    The rank is at most a quarter of the columns and of the differing rows. Two passes with a random sketch,
    O(V·d·rank).
    """
    differing = int(np.count_nonzero(moments.unequal & moments.finite))
    highest = min(HIGHEST_RANK, moments.width // 4, differing // 4)
    if highest < 1:
        return None
    ones = np.ones(moments.width)
    most = tolerance(kinds, (moments.squares[0], moments.energies[1]), ones, *_shape(moments))
    if _relative(_unexplained(embed, head, moments, highest), moments) > most:
        return None
    size = min(highest + _OVERSAMPLED, moments.width)
    rng, sketch = np.random.default_rng(0), np.zeros((size, moments.width))
    for start, stop in spans(moments.rows, moments.width):
        rows = _difference(embed, head, moments, start, stop)
        sketch += rng.standard_normal((size, len(rows))) @ rows
    basis = np.linalg.qr(sketch.T)[0]
    energy, inner = 0.0, np.zeros((size, size))
    for start, stop in spans(moments.rows, moments.width):
        rows = _difference(embed, head, moments, start, stop)
        seen = rows @ basis
        energy += float(np.einsum("ij,ij->", rows, rows))
        inner += seen.T @ seen
    left = energy - np.cumsum(np.linalg.eigvalsh(inner)[::-1][:highest])
    for rank, rest in enumerate(np.maximum(left, 0.0), 1):
        residual = _relative(float(rest), moments)
        if residual <= most:
            return rank, residual, 1 - float(rest) / energy if energy else 1.0
    return None


def _unexplained(embed: Table, head: Table, moments: Moments, rank: int) -> float:
    """Return a lower bound of the energy that no matrix of ``rank`` explains, from 1,024 rows at most.

    On these rows, the best matrix for the whole difference explains at most as much as their own best one.
    """
    rows = np.flatnonzero(moments.finite)
    rows = rows[:: max(len(rows) // _PROBED, 1)][:_PROBED]
    difference = head.pick(rows) - embed.pick(rows)
    values = np.linalg.eigvalsh(difference @ difference.T)
    # Rounding of the sums must not refuse a matrix of this rank.
    return max(float(values[: max(len(values) - rank, 0)].sum()) - 1e-9 * float(values.sum()), 0.0)


def _shape(moments: Moments) -> tuple[int, int]:
    return moments.count, moments.width


def _difference(embed: Table, head: Table, moments: Moments, start: int, stop: int) -> Array:
    used = moments.finite[start:stop]
    difference: Array = head.values(start, stop)[used] - embed.values(start, stop)[used]
    return difference


def _relative(squares: float, moments: Moments) -> float:
    """Return ‖rest‖ / ‖U‖ from the square of ‖rest‖."""
    whole = moments.energies[1]
    return float(np.sqrt(squares / whole)) if whole else float("inf")
