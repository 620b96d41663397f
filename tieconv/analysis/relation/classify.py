"""Classify how the head U relates to the embedding E, simplest relation first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from tieconv.analysis.model.tables import (
    Moments,
    Table,
    digests,
    measure,
    most_overlap,
    numbers,
    overlap,
    spans,
    untellable,
)
from tieconv.analysis.relation.maps import (
    Fit,
    Grams,
    Linear,
    column_fits,
    difference_rank,
    equal_share,
    fit_rows,
    linear_tolerance,
    precision,
    precision_at_1,
    relative_residual,
    row_factors,
    sample,
    shape,
)
from tieconv.analysis.relation.quantised_roundtrip import round_trip
from tieconv.checkpoint.results.analysis import Detail, Kinship
from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import BF16, FORMATS, convert

FEW = 32
"""The fewest common rows for classes other than equality."""

HALF = 0.5
"""Share of rows that must be equal, or nearest to their own row, for differing rows or drift."""

CLOSE = 0.9
"""Adjusted R² from which a map counts as one although its residual exceeds rounding."""


def relate_tables(embed: Table, head: Table) -> Related:
    """Return the class of two tables of equal width. Reads each table two to five times, in blocks.

    Raises the errors of the reader.
    """
    moments = measure(embed, head)
    exact = _equal(embed, head, moments)
    if exact is not None:
        return exact
    reason = untellable(moments, FEW)
    differing = int(np.count_nonzero(moments.unequal))
    if reason and moments.rows >= FEW and differing <= HALF * moments.rows:  # the other classes need more
        return _exact(Kinship.ROWS_DIFFER, moments, _differing(embed, head, moments))
    if reason:
        return Related(Kinship.UNKNOWN, moments, figures=NotClassified(reason))
    kinds = precision(embed), precision(head)
    once = _once_rounded(embed, head, moments, kinds)
    if once is not None:
        return once
    fits = column_fits(embed, head, moments, kinds)
    if fits and fits[0].exact:  # no map can do better
        return Related(Kinship.DRIFT, moments, fits[0].residual, fits[0].tolerance, True, fit=fits[0], fits=fits)
    for fit in fits:
        if fit.exact and fit.kind is not Kinship.DRIFT:
            return _fitted(fit, moments, fits)
    return _mapped(embed, head, moments, fits, kinds)


def equal_tables(embed: Table, head: Table) -> bool:
    """Return whether the tables are equal, bit by bit or after the wider type is rounded. Searches no maps.

    Raises the errors of the reader.
    """
    if _surely_differ(embed, head):
        return False
    moments = measure(embed, head)
    equality = _equal(embed, head, moments)
    if equality is None and not untellable(moments, FEW):
        equality = _once_rounded(embed, head, moments, (precision(embed), precision(head)))
    return equality is not None and equality.kind in (Kinship.BIT_EQUAL, Kinship.CAST)


def _surely_differ(embed: Table, head: Table) -> bool:
    """Return whether a few rows differ even after both are rounded to bfloat16, which every kind of equality keeps."""
    stop = min(FEW, embed.rows, head.rows)
    rounded = [numbers(convert(table.bits(0, stop).reshape(-1), table.form, BF16), BF16) for table in (embed, head)]
    with np.errstate(all="ignore"):
        return bool((np.abs(rounded[0] - rounded[1]) > 2.0**-7 * np.abs(rounded[0]) + 2.0**-24).any())


def _once_rounded(embed: Table, head: Table, moments: Moments, kinds: tuple[str, str]) -> Related | None:
    """Return the relation if one of two float32 tables is the other rounded to a narrower type, else ``None``."""
    if {embed.record.dtype, head.record.dtype} != {"F32"} or kinds[0] == kinds[1] or "F32" not in kinds:
        return None
    wide, narrow = (embed, head) if kinds[0] == "F32" else (head, embed)
    form = FORMATS[min(kinds, key=lambda kind: FORMATS[kind].mantissa)]
    for start, stop in spans(moments.rows, embed.width):
        left, right = (convert(table.bits(start, stop).reshape(-1), table.form, form) for table in (wide, narrow))
        if (left != right).any():
            return None
    moments = replace(moments, cast=form.name)
    differing = int(np.count_nonzero(moments.unequal))
    return _exact(Kinship.CAST, moments, OnceRounded(differing, moments.rows, form.name, stored="F32"))


def _equal(embed: Table, head: Table, moments: Moments) -> Related | None:
    """Return the relation if a comparison of bytes proves a class, else ``None``."""
    differing, rows = int(np.count_nonzero(moments.unequal)), moments.rows
    telling = rows - int(np.count_nonzero((moments.norms[0][:rows] == 0) & (moments.norms[1][:rows] == 0)))
    extra = head.rows - embed.rows
    if not differing and extra:
        return _exact(Kinship.ROW_SUBSET, moments, RowsAppended(0, rows, moments.cast, prefix=True, extra_rows=extra))
    if not differing:
        kind = Kinship.CAST if moments.cast else Kinship.BIT_EQUAL
        return _exact(kind, moments, RowsEqual(0, rows, moments.cast))
    if not moments.cast:
        moved = _moved_rows(embed, head, moments, extra)
        if moved is not None:
            return moved
    if differing <= HALF * telling and rows >= FEW:  # rows of zeros in both would be equal under any map
        return _exact(Kinship.ROWS_DIFFER, moments, _differing(embed, head, moments))
    return None


def _differing(embed: Table, head: Table, moments: Moments) -> RowsDiffering:
    differing = int(np.count_nonzero(moments.unequal))
    return RowsDiffering(differing, moments.rows, moments.cast, head.rows - embed.rows)


def _exact(kind: Kinship, moments: Moments, figures: RelationFigures) -> Related:
    residual = 0.0
    if kind is Kinship.ROWS_DIFFER:
        differences = moments.distances[moments.finite]
        residual = float(np.linalg.norm(differences) / np.sqrt(moments.energies[1])) if moments.energies[1] else 0.0
    return Related(kind, moments, residual, 0.0, kind is not Kinship.ROWS_DIFFER, figures=figures)


def _moved_rows(embed: Table, head: Table, moments: Moments, extra: int) -> Related | None:
    """Return the relation if the larger table has all rows of the smaller, or most under other numbers."""
    from_head = head.rows <= embed.rows
    small, large = (head, embed) if from_head else (embed, head)
    there = [norms != 0 for norms in (moments.norms[::-1] if from_head else moments.norms)]
    telling = int(np.count_nonzero(there[0]))
    of_small, of_large = moments.norms[::-1] if from_head else moments.norms
    if most_overlap(of_small, of_large, small.width) < min(small.rows, HALF * telling):  # no digest needed
        return None
    small_digests, large_digests = digests(small), digests(large)
    matched = overlap(small_digests, large_digests)
    in_place = moments.rows - int(np.count_nonzero(moments.unequal))
    # Rows of zeros are all equal, so they do not show that a row moved.
    shared = overlap(small_digests[there[0]], large_digests[there[1]])
    if matched < small.rows and (shared <= HALF * telling or small.rows < FEW):
        return None
    if in_place > HALF * small.rows and (not extra or matched < small.rows):  # most rows are in place
        return None
    smaller = "head" if from_head else "embedding"
    figures = RowsMoved(small.rows, matched, in_place, extra, prefix=False, smaller=smaller)
    return Related(Kinship.ROW_SUBSET if extra else Kinship.ROW_PERMUTATION, moments, 0.0, 0.0, True, figures=figures)


def _fitted(fit: Fit, moments: Moments, fits: tuple[Fit, ...]) -> Related:
    shifted, length = bool(np.any(fit.shift)), float(np.linalg.norm(fit.shift))
    figures: RelationFigures = Shifted(shifted, length)
    if fit.kind is Kinship.SCALAR:
        figures = Scaled(shifted, length, float(fit.gains[0]))
    if fit.kind is Kinship.DIAGONAL:
        figures = ColumnsScaled(shifted, length, float(fit.gains.min()), float(fit.gains.max()))
    return Related(fit.kind, moments, fit.residual, fit.tolerance, True, fit=fit, fits=fits, figures=figures)


def _mapped(embed: Table, head: Table, moments: Moments, fits: tuple[Fit, ...], kinds: tuple[str, str]) -> Related:
    """Return the relation by a linear map, by structure or drift, else independent or partly equal."""
    asked = sample(moments)
    rows = embed.pick(asked), head.pick(asked)
    fitted = fit_rows(embed, head, moments, rows, CLOSE)
    linear, unseen = (fitted.linear, fitted.held_out) if fitted else (None, None)
    best = min(fits, key=lambda fit: fit.residual)
    mapped = {"as stored": rows[0] + moments.means[1] - moments.means[0], "diagonal": best.gains * rows[0] + best.shift}
    if unseen is not None:
        mapped["linear"] = unseen
    retrieval = precision_at_1(head, moments, asked, mapped)
    measured = Related(
        Kinship.UNKNOWN, moments, fits=fits, retrieval=retrieval, asked=len(asked), linear=linear
    )  # the class follows
    if fitted and linear and unseen is not None:
        grams, residual = fitted.grams, relative_residual(rows[1], unseen)
        most = linear_tolerance(linear, grams, (moments.squares[0], moments.energies[1]), kinds)
        if residual <= most:
            return _linear(measured, linear, grams, residual, most)
    structured = _structured(embed, head, kinds, measured)
    if structured is not None:
        return structured
    if retrieval["as stored"] >= HALF:
        plain = fits[0]
        trip = round_trip(embed, head, moments.rows, kinds)
        figures = Quantised(trip.scheme, trip.bits, trip.group) if trip else NoFigures()
        residual, tolerance = plain.residual, plain.tolerance
        return replace(measured, kind=Kinship.DRIFT, residual=residual, tolerance=tolerance, fit=best, figures=figures)
    if linear and unseen is not None and linear.adjusted >= CLOSE:
        return _linear(measured, linear, grams, residual, most)
    if unseen is None:
        reason = "the tables have too few rows for each column, or too many columns, to test for a linear map"
        return replace(measured, residual=best.residual, fit=best, figures=NotClassified(reason))
    kind = Kinship.PARTLY_EQUAL if equal_share(moments).large else Kinship.INDEPENDENT
    return replace(measured, kind=kind, residual=best.residual, fit=best)


def _structured(embed: Table, head: Table, kinds: tuple[str, str], measured: Related) -> Related | None:
    """Return the relation by a factor for each row or a difference of low rank, else ``None``."""
    moments = measured.moments
    scaled = row_factors(embed, head, moments, kinds)
    if scaled is not None:
        residual, factors = scaled
        figures = RowsScaled(float(factors.min()), float(factors.max()))
        return replace(measured, kind=Kinship.ROW_SCALED, residual=residual, within_rounding=True, figures=figures)
    low = difference_rank(embed, head, moments, kinds)
    if low is None:
        return None
    rank, residual, explained = low
    return replace(
        measured, kind=Kinship.LOW_RANK, residual=residual, within_rounding=True, figures=LowRank(rank, explained)
    )


def _linear(measured: Related, linear: Linear, grams: Grams, residual: float, most: float) -> Related:
    kind, figure = shape(linear, grams, residual, most)
    is_turned = kind is Kinship.ORTHOGONAL
    figures = Orthogonal(figure, linear.adjusted) if is_turned else LinearlyMapped(figure, linear.adjusted)
    within = residual <= most
    return replace(measured, kind=kind, residual=residual, tolerance=most, within_rounding=within, figures=figures)


# The figures of each class of relation: one record for each, with its JSON under a section's ``detail``.
#
# ``rows`` are the rows that both tables have, and ``rows_differing`` those of them that differ.


@record
class NoFigures(Detail):
    """A class without figures."""


@record
class RowsEqual(Detail):
    """No row differs, bit by bit or after the wider type is rounded to ``cast``."""

    rows_differing: int
    rows: int
    cast: str


@record
class OnceRounded(Detail):
    """Both tables have the type ``stored``, and one is the other rounded to ``cast``."""

    rows_differing: int
    rows: int
    cast: str
    stored: str


@record
class RowsAppended(Detail):
    """The common rows are equal, and the head has ``extra_rows`` more rows (negative: fewer)."""

    rows_differing: int
    rows: int
    cast: str
    prefix: bool
    extra_rows: int


@record
class RowsMoved(Detail):
    """``rows`` of the ``smaller`` table, how many are in the larger one, and how many under the same number."""

    rows: int
    rows_matched: int
    rows_in_place: int
    extra_rows: int
    prefix: bool
    smaller: str


@record
class RowsDiffering(Detail):
    """Some rows differ and the others are equal."""

    rows_differing: int
    rows: int
    cast: str
    extra_rows: int


@record
class Shifted(Detail):
    """One vector of length ``shift_length`` is added to each row."""

    shifted: bool
    shift_length: float


@record
class Scaled(Detail):
    """The whole table is multiplied by ``factor``. If ``shifted``, one vector is added to each row."""

    shifted: bool
    shift_length: float
    factor: float


@record
class ColumnsScaled(Detail):
    """Each column has a factor. If ``shifted``, one vector is added to each row."""

    shifted: bool
    shift_length: float
    gain_min: float
    gain_max: float


@record
class RowsScaled(Detail):
    """Each row has a factor."""

    factor_min: float
    factor_max: float


@record
class Orthogonal(Detail):
    """An orthogonal map times ``factor``."""

    factor: float
    adjusted_r2: float


@record
class LinearlyMapped(Detail):
    """A linear map of this condition number."""

    condition: float
    adjusted_r2: float


@record
class LowRank(Detail):
    """The difference of the tables has this rank, up to the share ``explained`` of its energy."""

    rank: int
    explained: float


@record
class Quantised(Detail):
    """The head is the embedding after a round trip through ``scheme``.

    One scale is that of ``group`` numbers, 0 for a scheme without scales.
    """

    scheme: str
    bits: int
    group: int


@record
class NotClassified(Detail):
    """The class is unknown. ``reason`` is a clause that says why."""

    reason: str


RelationFigures = (
    NoFigures
    | RowsEqual
    | OnceRounded
    | RowsAppended
    | RowsMoved
    | RowsDiffering
    | Shifted
    | Scaled
    | ColumnsScaled
    | RowsScaled
    | Orthogonal
    | LinearlyMapped
    | LowRank
    | Quantised
    | NotClassified
)


@record
class Related:
    """The class of the head and the evidence. ``residual`` is ‖U − Û‖ / ‖U‖ of the map that the class names.

    ``within_rounding`` says whether rounding explains that residual; ``retrieval`` is P@1 by map, over ``asked`` rows.
    """

    kind: Kinship
    moments: Moments
    residual: float | None = None
    tolerance: float | None = None
    within_rounding: bool = False
    fit: Fit | None = None
    linear: Linear | None = None
    fits: tuple[Fit, ...] = ()
    retrieval: Mapping[str, float] = field(default_factory=dict)
    asked: int = 0
    figures: RelationFigures = NoFigures()
