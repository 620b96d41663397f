"""Classify how the head U relates to the embedding E, simplest relation first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace

import numpy as np

from tieconv.analysis import relation_maps, tables
from tieconv.analysis.tables import Array, Moments, Table, numbers, spans
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import BF16, FORMATS, convert
from tieconv.inspection.quantised.part_reader import E4M3

FEW = 32
"""The fewest common rows for classes other than equality."""

HALF = 0.5
"""Share of rows that must be equal, or nearest to their own row, for differing rows or drift."""

CLOSE = 0.9
"""Adjusted R² from which a map counts as one although its residual exceeds rounding."""


def relate_tables(embed: Table, head: Table, exact: bool | None = None) -> Related:
    """Return the class of two tables of equal width. Reads each table two to five times, in blocks.

    Long tables get their linear map from a sample, unless ``exact`` is set: see `fit_rows`. Raises the errors of the
    reader.
    """
    moments = tables.measure(embed, head)
    equality = _equal(embed, head, moments)
    if equality is not None:
        return equality
    reason = tables.untellable(moments, FEW)
    differing = int(np.count_nonzero(moments.unequal))
    if reason and moments.rows >= FEW and differing <= HALF * moments.rows:  # the other classes need more
        return _exact(Kinship.ROWS_DIFFER, moments, _differing(moments) | {"extra_rows": head.rows - embed.rows})
    if reason:
        return Related(Kinship.UNKNOWN, moments, figures={"reason": reason})
    kinds = relation_maps.precision(embed), relation_maps.precision(head)
    once = _once_rounded(embed, head, moments, kinds)
    if once is not None:
        return once
    fits = relation_maps.column_fits(embed, head, moments, kinds)
    if fits[0].exact:  # no map can do better
        return Related(Kinship.DRIFT, moments, fits[0].residual, fits[0].tolerance, True, fit=fits[0], fits=fits)
    for fit in fits:
        if fit.exact and fit.kind is not Kinship.DRIFT:
            figures = {"shifted": bool(np.any(fit.shift)), "shift_length": float(np.linalg.norm(fit.shift))}
            if fit.kind is Kinship.SCALAR:
                figures["factor"] = float(fit.gains[0])
            if fit.kind is Kinship.DIAGONAL:
                figures |= {"gain_min": float(fit.gains.min()), "gain_max": float(fit.gains.max())}
            return Related(fit.kind, moments, fit.residual, fit.tolerance, True, fit=fit, fits=fits, figures=figures)
    return _mapped(embed, head, moments, fits, kinds, exact)


def equal_tables(embed: Table, head: Table) -> bool:
    """Return whether the tables are equal, bit by bit or after the wider type is rounded. Searches no maps.

    Raises the errors of the reader.
    """
    if _surely_differ(embed, head):
        return False
    moments = tables.measure(embed, head)
    equality = _equal(embed, head, moments)
    if equality is None and not tables.untellable(moments, FEW):
        equality = _once_rounded(embed, head, moments, (relation_maps.precision(embed), relation_maps.precision(head)))
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
    return _exact(Kinship.CAST, moments, _differing(moments) | {"stored": "F32"})


def _equal(embed: Table, head: Table, moments: Moments) -> Related | None:
    """Return the relation if a comparison of bytes proves a class, else ``None``."""
    differing, rows = int(np.count_nonzero(moments.unequal)), moments.rows
    telling = rows - int(np.count_nonzero((moments.norms[0][:rows] == 0) & (moments.norms[1][:rows] == 0)))
    extra = head.rows - embed.rows
    if not differing and extra:
        return _exact(Kinship.ROW_SUBSET, moments, _differing(moments) | {"prefix": True, "extra_rows": extra})
    if not differing:
        return _exact(Kinship.CAST if moments.cast else Kinship.BIT_EQUAL, moments, _differing(moments))
    if not moments.cast:
        moved = _moved_rows(embed, head, moments, extra)
        if moved is not None:
            return moved
    if differing <= HALF * telling and rows >= FEW:  # rows of zeros in both would be equal under any map
        return _exact(Kinship.ROWS_DIFFER, moments, _differing(moments) | {"extra_rows": extra})
    return None


def _differing(moments: Moments) -> dict[str, float | str]:
    return {"rows_differing": int(np.count_nonzero(moments.unequal)), "rows": moments.rows, "cast": moments.cast}


def _exact(kind: Kinship, moments: Moments, figures: Figures) -> Related:
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
    if tables.most_overlap(of_small, of_large, small.width) < min(small.rows, HALF * telling):  # no digest needed
        return None
    small_digests, large_digests = tables.digests(small), tables.digests(large)
    matched = tables.overlap(small_digests, large_digests)
    in_place = moments.rows - int(np.count_nonzero(moments.unequal))
    # Rows of zeros are all equal, so they do not show that a row moved.
    shared = tables.overlap(small_digests[there[0]], large_digests[there[1]])
    if matched < small.rows and (shared <= HALF * telling or small.rows < FEW):
        return None
    if in_place > HALF * small.rows and (not extra or matched < small.rows):  # most rows are in place
        return None
    figures = {
        "rows": small.rows,
        "rows_matched": matched,
        "rows_in_place": in_place,
        "extra_rows": extra,
        "prefix": False,
        "smaller": "head" if from_head else "embedding",
    }
    return Related(Kinship.ROW_SUBSET if extra else Kinship.ROW_PERMUTATION, moments, 0.0, 0.0, True, figures=figures)


def _mapped(
    embed: Table,
    head: Table,
    moments: Moments,
    fits: tuple[relation_maps.Fit, ...],
    kinds: tuple[str, str],
    exact: bool | None,
) -> Related:
    """Return the relation by a linear map, by structure or drift, else independent or partly equal."""
    asked = relation_maps.sample(moments)
    fitted = relation_maps.fit_rows(embed, head, moments, asked, CLOSE, kinds, exact)
    linear, unseen = (fitted.linear, fitted.held_out) if fitted else (None, None)
    best, rows = min(fits, key=lambda fit: fit.residual), embed.pick(asked)
    mapped = {"as stored": rows + moments.means[1] - moments.means[0], "diagonal": best.gains * rows + best.shift}
    if unseen is not None:
        mapped["linear"] = unseen
    retrieval = relation_maps.precision_at_1(head, moments, asked, mapped)
    measured = Related(
        Kinship.UNKNOWN, moments, fits=fits, retrieval=retrieval, asked=len(asked), linear=linear
    )  # the class follows
    if fitted and linear and unseen is not None:
        residual, most = fitted.left(head.pick(asked), moments, kinds)
        if residual <= most:
            return _linear(measured, linear, fitted.grams, residual, most)
    structured = _structured(embed, head, kinds, measured)
    if structured is not None:
        return structured
    if retrieval["as stored"] >= HALF:
        plain = fits[0]
        figures = round_trip(embed, head, moments.rows, kinds)
        residual, tolerance = plain.residual, plain.tolerance
        return replace(measured, kind=Kinship.DRIFT, residual=residual, tolerance=tolerance, fit=best, figures=figures)
    if fitted and linear and unseen is not None and linear.adjusted >= CLOSE:
        return _linear(measured, linear, fitted.grams, residual, most)
    if unseen is None:
        reason = "the tables have too few rows for each column, or too many columns, to test for a linear map"
        return replace(measured, residual=best.residual, fit=best, figures={"reason": reason})
    kind = Kinship.PARTLY_EQUAL if relation_maps.equal_share(moments).large else Kinship.INDEPENDENT
    return replace(measured, kind=kind, residual=best.residual, fit=best)


def _structured(embed: Table, head: Table, kinds: tuple[str, str], measured: Related) -> Related | None:
    """Return the relation by a factor for each row or a difference of low rank, else ``None``."""
    moments = measured.moments
    scaled = relation_maps.row_factors(embed, head, moments, kinds)
    if scaled is not None:
        residual, factors = scaled
        figures = {"factor_min": float(factors.min()), "factor_max": float(factors.max())}
        return replace(measured, kind=Kinship.ROW_SCALED, residual=residual, within_rounding=True, figures=figures)
    low = relation_maps.difference_rank(embed, head, moments, kinds)
    if low is None:
        return None
    rank, residual, explained = low
    figures = {"rank": rank, "explained": explained}
    return replace(measured, kind=Kinship.LOW_RANK, residual=residual, within_rounding=True, figures=figures)


def _linear(
    measured: Related, linear: relation_maps.Linear, grams: relation_maps.Grams, residual: float, most: float
) -> Related:
    kind, figure = relation_maps.shape(linear, grams, residual, most)
    name = "factor" if kind is Kinship.ORTHOGONAL else "condition"
    figures = {name: figure, "adjusted_r2": linear.adjusted}
    within = residual <= most
    return replace(measured, kind=kind, residual=residual, tolerance=most, within_rounding=within, figures=figures)


# The class of the relation, and its figures under a section's ``detail``.


Figures = Mapping[str, float | str]


@record
class Related:
    """The class of the head and the evidence. ``residual`` is ‖U − Û‖ / ‖U‖ of the map that the class names.

    ``within_rounding`` says whether rounding explains that residual; ``retrieval`` is P@1 by map, over ``asked`` rows.

    ``figures`` are those of the class, by their keys in JSON. There ``rows`` are the rows that both tables have. Of
    these, ``rows_differing`` rows differ after the wider type is rounded to ``cast``. The head has ``extra_rows``
    more rows than the embedding (negative: fewer). Of the table ``smaller``, ``rows_matched`` rows are in the larger
    one, and ``rows_in_place`` under the same number. ``group`` is how many numbers share a scale, 0 for no scale.
    ``explained`` is the share of the difference's energy in its ``rank``. ``reason`` says why no class is known.
    """

    kind: Kinship
    moments: Moments
    residual: float | None = None
    tolerance: float | None = None
    within_rounding: bool = False
    fit: relation_maps.Fit | None = None
    linear: relation_maps.Linear | None = None
    fits: tuple[relation_maps.Fit, ...] = ()
    retrieval: Mapping[str, float] = field(default_factory=dict)
    asked: int = 0
    figures: Figures = field(default_factory=dict)


# Find out whether the head is the embedding after a quantisation round trip, which is not drift.
#
# A scheme has a table of levels, which the scale of a group multiplies. It maps each number to the nearest level. So
# every number of the head is one of the two levels around the embedding's number.

_UNIT = {"F64": 2.0**-20, "F32": 2.0**-20, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The relative error of a stored number, by type."""

_LEAST = {"F64": 0.0, "F32": 0.0, "F16": 2.0**-25, "BF16": 0.0}
"""The absolute error of a small number: subnormal numbers of F16 are in reach of ordinary tables."""

SCALE = 2.0**-11
"""The relative error of a scale, which may be stored as float16."""

FEW_ROWS = 16
"""Rows that determine the scheme and the size of the groups."""

_GROUPS = (0, 128, 64, 32)
"""Numbers of a row that share one scale, 0 for the whole row; 32 is a block of GGUF."""

_HALF_NF4 = (0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
             0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, *_HALF_NF4)  # fmt: skip
"""The levels of NF4, which bitsandbytes and the QLoRA paper (arXiv 2305.14314, appendix E) list."""

_FP8 = np.unique(E4M3[np.isfinite(E4M3)])

Scales = Callable[[Array, Array], tuple[Array, Array]]
"""Maps groups of E and of U, (groups, n), to their scales and offsets, (groups, 1) each."""


@record
class Scheme:
    """A quantisation with ``levels`` (ascending) times a scale, plus an offset.

    ``groups`` are the usual numbers of values with one scale.
    """

    name: str
    bits: int
    levels: Array
    scales: Scales
    groups: tuple[int, ...] = _GROUPS


def _by_largest(top: float) -> Scales:
    """Scale the largest magnitude of a group to the level ``top``."""
    return lambda e, _: (np.abs(e).max(axis=1, keepdims=True) / top, np.zeros((len(e), 1)))


def _by_signed_largest(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale the number with the largest magnitude to the level −8, whatever its sign (Q4_0 of GGUF)."""
    largest = np.take_along_axis(e, np.abs(e).argmax(axis=1, keepdims=True), axis=1)
    return largest / -8, np.zeros_like(largest)


def _by_range(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale the smallest number to the level 0 and the largest to 15 (Q4_1 of GGUF)."""
    least = e.min(axis=1, keepdims=True)
    return (e.max(axis=1, keepdims=True) - least) / 15, least


def _by_zero_point(e: Array, _: Array) -> tuple[Array, Array]:
    """Scale as `_by_range`, with 0 in the range and as a level (an integer zero point)."""
    least = np.minimum(e.min(axis=1, keepdims=True), 0)
    step = (np.maximum(e.max(axis=1, keepdims=True), 0) - least) / 15
    return step, np.rint(np.divide(least, step, out=np.zeros_like(step), where=step > 0)) * step


def _of_head(_: Array, u: Array) -> tuple[Array, Array]:
    """Scale the largest magnitude of the head to the level 1. The embedding's may differ, if scales are quantised."""
    return np.abs(u).max(axis=1, keepdims=True), np.zeros((len(u), 1))


SCHEMES = (
    Scheme("int8", 8, np.arange(-127.0, 128), _by_largest(127)),
    Scheme("int4", 4, np.arange(-8.0, 8), _by_largest(7)),
    Scheme("Q4_0", 4, np.arange(-8.0, 8), _by_signed_largest, (32,)),
    Scheme("int4 with a zero point", 4, np.arange(0.0, 16), _by_zero_point),
    Scheme("Q4_1", 4, np.arange(0.0, 16), _by_range, (32,)),
    Scheme("NF4", 4, np.array(_NF4), _of_head, (64, 128, 32, 0)),
    Scheme("FP8 (E4M3)", 8, _FP8, _by_largest(448)),
    Scheme("FP8 (E4M3)", 8, _FP8, lambda e, _: (np.ones((len(e), 1)), np.zeros((len(e), 1))), (-1,)),
)


def round_trip(embed: Table, head: Table, rows: int, kinds: tuple[str, str]) -> dict[str, float | str]:
    """Return the figures of the scheme if the head is the embedding after its round trip, else none.

    Every number of the first ``rows`` rows is compared. It must equal one of the two levels around the embedding's
    number, within the error of the types. A merely small change does not pass. ``kinds`` are the types that the tables
    were last rounded to.
    """
    width, error = embed.width, (SCALE + sum(_UNIT[kind] for kind in kinds), sum(_LEAST[kind] for kind in kinds))
    some = (0, min(FEW_ROWS, rows))
    for scheme, size in _choices(width):
        parts = (some, *spans(rows, width))
        if all(_coded(embed, head, part, scheme, size, error) for part in parts):
            return {"scheme": scheme.name, "bits": scheme.bits, "group": 0 if scheme.groups == (-1,) else size}
    return {}


def _choices(width: int) -> Iterator[tuple[Scheme, int]]:
    for scheme in SCHEMES:
        for size in scheme.groups:
            if size <= 0 or (size < width and width % size == 0):
                yield scheme, size if size > 0 else width


def _coded(
    embed: Table, head: Table, span: tuple[int, int], scheme: Scheme, group: int, error: tuple[float, float]
) -> bool:
    e, u = (table.values(*span).reshape(-1, group) for table in (embed, head))
    with np.errstate(all="ignore"):
        scales, offsets = scheme.scales(e, u)
        codes = np.divide(e - offsets, scales, out=np.zeros_like(e), where=scales != 0)
        above = np.clip(np.searchsorted(scheme.levels, codes), 0, len(scheme.levels) - 1)
        candidates = (scheme.levels[places] * scales + offsets for places in (above, np.maximum(above - 1, 0)))
        off = np.minimum(*(np.abs(u - levels) for levels in candidates))
        return bool((off <= error[0] * (np.abs(u) + np.abs(offsets)) + np.abs(scales) * 2.0**-20 + error[1]).all())


DIGITS = 24
"""Significant binary digits of a float32."""


def simplest(low: Array, high: Array) -> Array:
    """Return the number with the fewest significant binary digits, at most `DIGITS`, of each interval [low, high].

    An unbounded interval gives 1, an interval with 0 gives 0, and one without such a number gives NaN.
    """
    negative = high < 0
    small, large = np.where(negative, -high, low), np.where(negative, -low, high)
    numbers = np.full(len(low), np.nan)
    open_ = np.isnan(numbers) & np.isfinite(small) & np.isfinite(large) & (small > 0) & (small <= large)
    exponents = np.frexp(np.where(open_, large, 1.0))[1]
    for digits in range(1, DIGITS + 1):
        step = np.ldexp(1.0, exponents - digits)
        candidate = np.floor(np.where(open_, large, 1.0) / step) * step
        hit = open_ & np.isnan(numbers) & (candidate >= small)
        numbers = np.where(hit, candidate, numbers)
    numbers = np.where(negative, -numbers, numbers)
    numbers = np.where((low <= 0) & (high >= 0), 0.0, numbers)
    return np.where(np.isinf(low) & np.isinf(high), 1.0, numbers)
