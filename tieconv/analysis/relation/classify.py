"""What U is to E: the first class that fits, from the plainest to none."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import Moments, measure
from tieconv.analysis.model.tables import Table
from tieconv.analysis.relation.codes import code_group
from tieconv.analysis.relation.equal_bytes import (
    FEW,
    HALF,
    Related,
    difference_detail,
    equal_by_bytes,
    exact_relation,
    once_rounded,
    untellable,
)
from tieconv.analysis.relation.fits import Fit, column_fits
from tieconv.analysis.relation.grams import WIDEST, Grams, gram
from tieconv.analysis.relation.linear_map import Linear, fit_linear, fit_without, linear_tolerance, residual_on, shape
from tieconv.analysis.relation.retrieval import precision_at_1, sample
from tieconv.analysis.relation.rounding_tolerance import precision
from tieconv.analysis.relation.structured_difference import difference_rank, equal_share, row_factors
from tieconv.checkpoint.results.analysis import Kinship

CLOSE = 0.9
"""Adjusted R² from which a map that leaves more than rounding is still called one."""


def relate_tables(embed: Table, head: Table) -> Related:
    """The class of two tables of one width. Reads each two to five times, a block at a time.

    Raises what the reader raises.
    """
    moments = measure(embed, head)
    exact = equal_by_bytes(embed, head, moments)
    if exact is not None:
        return exact
    reason = untellable(moments)
    differing = int(np.count_nonzero(moments.unequal))
    if reason and moments.rows >= FEW and differing <= HALF * moments.rows:  # nothing finer can be told
        return exact_relation(Kinship.ROWS_DIFFER, moments, difference_detail(embed, head, moments))
    if reason:
        return Related(Kinship.UNKNOWN, moments, detail={"reason": reason})
    kinds = precision(embed), precision(head)
    once = once_rounded(embed, head, moments, kinds)
    if once is not None:
        return once
    fits = column_fits(embed, head, moments, kinds)
    if fits and fits[0].exact:  # before the maps, each of which could only do as well
        return Related(Kinship.DRIFT, moments, fits[0].residual, fits[0].tolerance, True, fit=fits[0], fits=fits)
    for fit in fits:
        if fit.exact and fit.kind is not Kinship.DRIFT:
            return _fitted(fit, moments, fits)
    return _mapped(embed, head, moments, fits, kinds)


def _fitted(fit: Fit, moments: Moments, fits: tuple[Fit, ...]) -> Related:
    detail: dict[str, object] = {"shifted": bool(np.any(fit.shift)), "shift_length": float(np.linalg.norm(fit.shift))}
    if fit.kind is Kinship.SCALAR:
        detail["factor"] = float(fit.gains[0])
    if fit.kind is Kinship.DIAGONAL:
        detail |= {"gain_min": float(fit.gains.min()), "gain_max": float(fit.gains.max())}
    return Related(fit.kind, moments, fit.residual, fit.tolerance, True, fit=fit, fits=fits, detail=detail)


def _mapped(embed: Table, head: Table, moments: Moments, fits: tuple[Fit, ...], kinds: tuple[str, str]) -> Related:
    """Linear maps, drift, or nothing."""
    asked = sample(moments)
    grams = gram(embed, head, moments.finite, moments.means) if embed.width <= WIDEST else None
    linear = fit_linear(grams) if grams else None
    unseen = fit_without(grams, embed.pick(asked), head.pick(asked)) if grams else None
    move = moments.means[1] - moments.means[0]
    best = min(fits, key=lambda fit: fit.residual)
    maps = {"as stored": lambda e: e + move, "diagonal": lambda e: best.gains * e + best.shift}
    if unseen:
        maps["linear"] = unseen.apply
    retrieval = precision_at_1(embed, head, moments, asked, maps)
    shared = {"moments": moments, "fits": fits, "retrieval": retrieval, "asked": len(asked), "linear": linear}
    if grams and linear and unseen:
        residual = residual_on(embed, head, unseen, asked)
        most = linear_tolerance(linear, grams, (moments.squares[0], moments.energies[1]), kinds)
        if residual <= most:
            return _linear(linear, grams, residual, most, shared)
    structured = _structured(embed, head, moments, kinds, shared)
    if structured is not None:
        return structured
    if retrieval["as stored"] >= HALF:
        plain = fits[0]
        group = code_group(embed, head, moments.rows, kinds)
        detail = {"bits": 8, "group": group} if group else {}
        return Related(
            Kinship.DRIFT,
            residual=plain.residual,
            tolerance=plain.tolerance,
            fit=best,
            detail=detail,
            **shared,  # type: ignore[arg-type]
        )
    if grams and linear and unseen and linear.adjusted >= CLOSE:
        return _linear(linear, grams, residual, most, shared)
    if unseen is None:
        reason = "too few rows for each column, or too many columns, to tell a linear map from none"
        return Related(Kinship.UNKNOWN, residual=best.residual, fit=best, detail={"reason": reason}, **shared)  # type: ignore[arg-type]
    kind = Kinship.PARTLY_EQUAL if equal_share(moments).large else Kinship.INDEPENDENT
    return Related(kind, residual=best.residual, fit=best, **shared)  # type: ignore[arg-type]


def _structured(
    embed: Table, head: Table, moments: Moments, kinds: tuple[str, str], shared: dict[str, object]
) -> Related | None:
    """A factor for each row, or a difference of low rank."""
    scaled = row_factors(embed, head, moments, kinds)
    if scaled is not None:
        residual, factors = scaled
        detail: dict[str, object] = {"factor_min": float(factors.min()), "factor_max": float(factors.max())}
        return Related(Kinship.ROW_SCALED, residual=residual, within_rounding=True, detail=detail, **shared)  # type: ignore[arg-type]
    low = difference_rank(embed, head, moments, kinds)
    if low is None:
        return None
    rank, residual = low
    return Related(Kinship.LOW_RANK, residual=residual, within_rounding=True, detail={"rank": rank}, **shared)  # type: ignore[arg-type]


def _linear(linear: Linear, grams: Grams, residual: float, most: float, shared: dict[str, object]) -> Related:
    kind, figure = shape(linear, grams, residual, most)
    key = "factor" if kind is Kinship.ORTHOGONAL else "condition"
    detail = {key: figure, "adjusted_r2": linear.adjusted}
    return Related(kind, residual=residual, tolerance=most, within_rounding=residual <= most, detail=detail, **shared)  # type: ignore[arg-type]
