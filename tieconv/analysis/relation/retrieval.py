"""Measure P@1: the share of rows of E whose nearest row of U, by cosine, is that of their token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tieconv.analysis.model.moments import SQUARED, Moments
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.grams import GEMM

QUERIES = 256
"""Sampled rows. The standard error of the share is at most 3 points."""

Map = Callable[[Array], Array]


def sample(moments: Moments, most: int = QUERIES, seed: int = 0) -> Array:
    """Draw the rows to sample, ascending: finite, not zero, without replacement."""
    usable = np.flatnonzero(moments.finite & (moments.norms[0][: moments.rows] > SQUARED[0]))
    most = min(most, max(len(usable) // 4, 1))  # the maps are fitted on the others
    return np.sort(np.random.default_rng(seed).choice(usable, most, replace=False))


def precision_at_1(embed: Table, head: Table, moments: Moments, asked: Array, maps: dict[str, Map]) -> dict[str, float]:
    """Return P@1 after each map of E, in one pass over U. Rows are centred to remove a common vector.

    Chance gives 1 / rows. The first of equal rows of U is the answer, so duplicates lower P@1.
    """
    mean_u = moments.means[1]
    rows = embed.pick(asked)
    queries = {name: _unit(apply(rows) - mean_u) for name, apply in maps.items()}
    best = {name: np.full(len(asked), -np.inf) for name in maps}
    retrieved = {name: np.full(len(asked), -1) for name in maps}
    for start, stop in spans(moments.rows, head.width, GEMM):
        u = np.nan_to_num(_unit(head.values(start, stop) - mean_u), nan=0.0, posinf=0.0, neginf=0.0)
        for name, query in queries.items():
            scores = query @ u.astype("f4").T
            top = scores.argmax(axis=1)
            value = scores[np.arange(len(asked)), top]
            better = value > best[name]
            best[name][better], retrieved[name][better] = value[better], top[better] + start
    return {name: float(np.mean(retrieved[name] == asked)) if len(asked) else 0.0 for name in maps}


def _unit(rows: Array) -> Array:
    """Scale rows to length 1, as float32. Zero rows stay zero."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = np.where(lengths > 0, rows / lengths, 0).astype("f4")
    return unit
