"""Fit maps from the embedding E to the head U, simplest first, and measure what each leaves.

Imports numpy: import it lazily.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tieconv.analysis.tables import SQUARED, Array, Moments, Table, numbers, singles, spans
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record

# The largest difference of two tables that rounding explains: the tolerance of every class that is not exact.

SLACK = 1.5
"""The factor by which a residual may exceed the expected rounding."""

_RELATIVE = {"BF16": 1.66e-3, "F16": 2.07e-4, "F32": 2.53e-8, "F64": 4.7e-17}
"""Root mean square of the relative error of one rounding to nearest, measured on normal numbers."""

_SUBNORMAL = {"F16": 2.0**-24 / 12**0.5, "BF16": 2.0**-133 / 12**0.5, "F32": 2.0**-149 / 12**0.5}
"""Root mean square of the absolute error among subnormal numbers."""

FLOOR = 1e-6
"""The smallest tolerance: the error of float32 arithmetic."""


def precision(table: Table) -> str:
    """Return the type that the values were last rounded to. A float32 table may hold bfloat16 values.

    The answer follows from 16 blocks spread over the table. It is right for any table that was cast as a whole.
    """
    if table.record.dtype != "F32":
        return table.record.dtype
    blocks = list(spans(table.rows, table.width, 1 << 14))
    used = 0
    for start, stop in blocks[:: max(len(blocks) // 16, 1)]:
        used |= int(np.bitwise_or.reduce(table.bits(start, stop), axis=None))
    if not used & 0xFFFF:
        return "BF16"
    return "F32" if used & 0x1FFF else "F16"


def tolerance(kinds: tuple[str, str], moments: Moments, energies: Array, gains: Array | float = 1.0) -> float:
    """Return the largest ‖U − Û‖ / ‖U‖ that rounding explains.

    ``kinds`` are the types of E and U. ``energies`` are the column energies of E (d,), whose noise passes through the
    map. ``gains`` is the squared length of each of its rows (d,).
    """
    of_e, of_u = (_RELATIVE[kind] for kind in kinds)
    whole_u = moments.energies[1]
    noise = of_u**2 * whole_u + of_e**2 * float(np.sum(energies * gains))
    noise += sum(_SUBNORMAL.get(kind, 0.0) ** 2 for kind in kinds) * moments.count * moments.width
    return max(SLACK * float(np.sqrt(noise / whole_u)), FLOOR) if whole_u else FLOOR


# Fit maps from E to U that act on each column separately: U_v ≈ g ⊙ E_v + c.

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

    Scalar and diagonal maps are fitted with and without a shift. The moments give a large residual without another
    pass. A small one is measured from differences.
    """
    candidates = _candidates(moments)
    expanded = [_expanded(moments, gains, shift) for _, gains, shift in candidates]
    maps = [map_ for map_, square in zip(candidates, expanded, strict=True) if square is None]
    measured = iter(_residuals(embed, head, moments.finite, [map_[1:] for map_ in maps]) if maps else ())
    residuals = [next(measured) if square is None else square for square in expanded]
    energy = moments.energies[1]
    fits = []
    for (kind, gains, shift), residual in zip(candidates, residuals, strict=True):
        most = tolerance(kinds, moments, moments.squares[0], gains**2)
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


# Compute the d × d moments EᵀE and EᵀU in one streaming pass. Memory: two such matrices for any V.

GEMM = 1 << 22
"""Elements of a block that is multiplied at once (16 MiB as float32)."""

WIDEST = 1 << 14
"""The most columns for moments. A d × d matrix of this width takes 2 GiB."""


@record
class Grams:
    """Centred second moments over ``rows`` rows, float64: ``ee`` and ``eu`` (d, d), and the mean rows.

    ``whole`` is ‖U − 1·meanᵀ‖². ``error`` is a bound γ. No entry of EᵀE is off by more than γ·|E|ᵀ|E|. No entry of
    EᵀU is off by more than γ·|E|ᵀ|U|.
    """

    rows: int
    ee: Array
    eu: Array
    whole: float
    means: tuple[Array, Array]
    error: float

    @property
    def width(self) -> int:
        return len(self.ee)


def gram(embed: Table, head: Table, moments: Moments, *, single: bool, rows: Array | None = None) -> Grams:
    """Return the moments about the mean rows, over ``rows`` (ascending), by default all that are finite in both tables.

    Centring before multiplying keeps digits that a large common vector would lose. With ``single``, the mean rows are
    rounded to float32. Products are summed in float32 inside a block and in float64 across blocks. Let u = 2⁻²⁴. In
    any order, n rounded products add up to an error of at most n·u/(1 − n·u) of their magnitudes. This is §3.1 of
    Higham's Accuracy and Stability of Numerical Algorithms. The rounding of both factors adds 2·u.
    """
    width, means = embed.width, moments.means
    rows = np.flatnonzero(moments.finite) if rows is None else rows
    ee, eu, whole = np.zeros((width, width)), np.zeros((width, width)), 0.0
    block = GEMM if embed.form.width == 2 else GEMM // 4  # fewer terms for values whose products float32 rounds
    for start, stop in spans(len(rows), width, block):
        e, u = (_centred(embed, rows[start:stop], means[0], single), _centred(head, rows[start:stop], means[1], single))
        ee += e.T @ e
        eu += e.T @ u
        whole += float(np.einsum("ij,ij->i", u, u).sum(dtype="f8"))
    unit = 2.0**-24 if single else 2.0**-53
    terms = (min(block // width or 1, len(rows)) + 4) * unit
    return Grams(len(rows), ee, eu, whole, means, terms / (1 - terms))


def _centred(table: Table, rows: Array, mean: Array, single: bool) -> Array:
    """Return rows without their mean, as float32 or float64. float32 values are subtracted in float32."""
    values = table.pick_singles(rows) if single else table.pick(rows)
    values = values if values.flags.writeable else values.copy()
    values -= mean.astype(values.dtype)
    return values


# Fit the linear map U ≈ E·M + 1cᵀ from the d × d moments. Test whether M is orthogonal or SPD.

ENOUGH = 2
"""The fewest rows for each column. With fewer, any table is nearly a linear map of any other."""

EXACT = 16_384
"""The most rows of tables that are measured without a sample."""

FITTED, FEWEST = 8, 8192
"""A long table's map is fitted on so many rows for each column: at least `FEWEST` rows, at most half."""

ALONE = 1e-9
"""1 − leverage up to which a direction belongs to the left-out rows alone."""


@record
class Linear:
    """The map U_v ≈ E_v·map + shift.

    ``r2`` is the share of the centred energy of U that it explains. ``adjusted`` is corrected for chance: about 0 for
    unrelated tables of any V and d. Both are of the ``rows`` of the fit. If these are a sample, ``interval`` is the
    95 % interval of ``adjusted`` of all rows.
    """

    map: Array
    shift: Array
    r2: float
    adjusted: float
    rows: int
    interval: tuple[float, float] | None = None

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

    def left(self, u: Array, moments: Moments, kinds: tuple[str, str]) -> tuple[float, float]:
        """Return ‖U − Û‖ / ‖U‖ of the held-out rows ``u`` (n, d), and the most that rounding explains.

        The residual is of differences, because the moments lose half the digits.
        """
        whole = float(np.linalg.norm(u))
        residual = float(np.linalg.norm(u - self.held_out)) / whole if whole else float("inf")  # of rows of zeros
        gains = np.einsum("ij,ij->i", self.linear.map, self.linear.map)
        # Sums of products in float32 add an error to the map.
        return residual, max(tolerance(kinds, moments, moments.squares[0], gains), 1e-5)

    def interval(self, e: Array, u: Array) -> tuple[float, float]:
        """Return the 95 % interval of all rows' adjusted R². The map's sample includes the rows ``e`` and ``u`` (n, d).

        A sample's map does better on its own rows than the best map of all rows. It does worse on the held-out rows.
        So these two R², each with its error, are the ends.
        """
        whole = np.square(u - self.grams.means[1]).sum(axis=1)
        ends = []
        for sign, predicted in ((-1, self.held_out), (1, self.linear.apply(e))):
            left = np.square(u - predicted).sum(axis=1)
            rest = left.sum() / whole.sum()
            ends.append(float(1 - rest + sign * 1.96 * np.std(left - rest * whole) / whole.mean() / len(u) ** 0.5))
        return ends[0], ends[1]

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


def fitted_rows(count: int, width: int) -> int:
    """Return on how many of ``count`` rows the maps of a long table are fitted."""
    return min(max(FITTED * width, FEWEST), count // 2)


def fit_rows(
    embed: Table, head: Table, moments: Moments, asked: Array, close: float, kinds: tuple[str, str], exact: bool | None
) -> Fitted | None:
    """Fit the linear map, and predict the rows ``asked`` from a fit without them. ``None`` if too wide or too short.

    With ``exact``, by default for up to `EXACT` rows, the map is fitted on all rows. Otherwise a sample decides if it
    shows that the map leaves more than rounding, and an adjusted R² below ``close``. Products of two 16-bit types are
    summed in float32. Others are too if the bound of their error proves that the adjusted R² is below ``close``.
    """
    if embed.width > WIDEST:
        return None
    rows = embed.pick(asked), head.pick(asked)
    short = max(embed.form.width, head.form.width) == 2
    if not (moments.count <= EXACT if exact is None else exact):
        rest = np.setdiff1d(np.flatnonzero(moments.finite), asked)
        some = np.random.default_rng(1).choice(rest, fitted_rows(len(rest), embed.width), replace=False)
        fitted = fit_linear(gram(embed, head, moments, single=True, rows=np.union1d(some, asked)), rows)
        if fitted is not None and fitted.held_out is not None and (short or fitted.surely_below(close)):
            interval, (residual, most) = fitted.interval(*rows), fitted.left(rows[1], moments, kinds)
            if residual > most and interval[1] < close:
                return replace(fitted, linear=replace(fitted.linear, interval=interval))
        fitted = None  # frees three d × d matrices
    fitted = fit_linear(gram(embed, head, moments, single=True), rows)
    if fitted is not None and (short or fitted.surely_below(close)):
        return fitted
    fitted = None
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
    linear = Linear(matrix, grams.means[1] - grams.means[0] @ matrix, r2, adjusted, count)
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
    def of(cls, matrix: Array) -> Inverse:
        """Invert a matrix. Directions with less than 10⁻¹² of the largest eigenvalue are rounding, and ignored."""
        values, vectors = np.linalg.eigh(matrix)
        first = int(np.searchsorted(values, max(values[-1] * 1e-12, 0.0), "right"))
        return cls(values[first:], vectors[:, first:], float(values[0]))

    def times(self, cross: Array) -> Array:
        """Return the inverse times ``cross`` (d, d')."""
        inner = self.basis.T @ cross
        inner /= self.values[:, None]
        product: Array = self.basis @ inner
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


# Structured differences of two tables: one factor for each row, a low rank, equal rows or columns.

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
    largest = tolerance(kinds, moments, moments.squares[1])
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
    most = tolerance(kinds, moments, scaled)
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
    most = tolerance(kinds, moments, moments.squares[0])
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


def _difference(embed: Table, head: Table, moments: Moments, start: int, stop: int) -> Array:
    used = moments.finite[start:stop]
    difference: Array = head.values(start, stop)[used] - embed.values(start, stop)[used]
    return difference


def _relative(squares: float, moments: Moments) -> float:
    """Return ‖rest‖ / ‖U‖ from the square of ‖rest‖."""
    whole = moments.energies[1]
    return float(np.sqrt(squares / whole)) if whole else float("inf")


# Measure P@1: the share of rows of E whose nearest row of U, by cosine, is that of their token.

QUERIES = 256
"""Sampled rows. The standard error of the share is at most 3 points."""

MIDDLING = (1e-12, 1e15)
"""Lengths of rows whose squares float32 holds."""


def sample(moments: Moments, most: int = QUERIES, seed: int = 0) -> Array:
    """Draw the rows to sample, ascending: finite, not zero, without replacement."""
    usable = np.flatnonzero(moments.finite & (moments.norms[0][: moments.rows] > SQUARED[0]))
    most = min(most, max(len(usable) // 4, 1))  # the maps are fitted on the others
    return np.sort(np.random.default_rng(seed).choice(usable, most, replace=False))


def precision_at_1(head: Table, moments: Moments, asked: Array, mapped: dict[str, Array]) -> dict[str, float]:
    """Return P@1 of each map, in one pass over U. ``mapped`` are the rows ``asked`` of E (n, d) after each map.

    Rows are centred to remove a common vector. Chance gives 1 / rows. The first of equal rows of U is the answer, so
    duplicates lower P@1. A query ends as a miss if another row is surely closer.
    """
    mean, count = moments.means[1], len(asked)
    queries = np.concatenate([_unit(rows - mean) for rows in mapped.values()])
    rows, sizes = _rows(head.pick_bits(asked), head, moments, asked)
    # Two sums of the same d products differ by at most d·2⁻²³ of a cosine.
    surely = np.einsum("ij,ij->i", queries, np.tile(rows, (len(mapped), 1))) * np.tile(sizes, len(mapped))
    surely += (head.width + 8) * 2.0**-23
    close = np.sqrt(head.width) * 2.0**-22  # the kernels of a CPU may round the products of equal rows differently
    best, retrieved, open_ = np.full(len(queries), -np.inf), np.full(len(queries), -1), np.arange(len(queries))
    for start, stop in spans(moments.rows, head.width, GEMM):
        rows, sizes = _rows(head.bits(start, stop), head, moments, slice(start, stop))
        scores = queries[open_] @ rows.T
        scores *= sizes
        value = scores.max(axis=1)
        top = (scores >= value[:, None] - close).argmax(axis=1)
        better = value > best[open_] + close
        best[open_[better]], retrieved[open_[better]] = value[better], top[better] + start
        open_ = open_[value <= surely[open_]]
        if not len(open_):
            break
    parts = np.split(retrieved, len(mapped))
    return {name: float(np.mean(part == asked)) if count else 0.0 for name, part in zip(mapped, parts, strict=True)}


def _rows(bits: Array, table: Table, moments: Moments, which: Array | slice) -> tuple[Array, Array]:
    """Return the centred rows ``which`` as float32 and 1 / length of each, 0 for rows that have no direction."""
    mean, lengths = moments.means[1], moments.norms[1][which]
    rows = singles(bits, table.form) - mean.astype("f4")
    squares = np.einsum("ij,ij->i", rows, rows)
    sizes = np.divide(1, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
    extreme = ~((lengths > MIDDLING[0]) & (lengths < MIDDLING[1]))  # their squares leave the range of float32
    rows[extreme] = np.nan_to_num(_unit(numbers(bits[extreme], table.form) - mean), nan=0.0, posinf=0.0, neginf=0.0)
    sizes[extreme] = 1
    return rows, sizes


def _unit(rows: Array) -> Array:
    """Scale rows to length 1, as float32. Zero rows stay zero."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = np.where(lengths > 0, rows / lengths, 0).astype("f4")
    return unit
