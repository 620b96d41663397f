"""Measure P@1: the share of rows of E whose nearest row of U, by cosine, is that of their token."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import SQUARED, Moments
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.grams import GEMM

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
    duplicates lower P@1.
    """
    mean, count = moments.means[1], len(asked)
    queries = np.concatenate([_unit(rows - mean) for rows in mapped.values()])
    best, retrieved = np.full(len(queries), -np.inf), np.full(len(queries), -1)
    for start, stop in spans(moments.rows, head.width, GEMM):
        rows, sizes = _rows(head, moments, start, stop)
        scores = queries @ rows.T
        scores *= sizes
        top = scores.argmax(axis=1)
        value = scores[np.arange(len(queries)), top]
        better = value > best
        best[better], retrieved[better] = value[better], top[better] + start
    parts = np.split(retrieved, len(mapped))
    return {name: float(np.mean(part == asked)) if count else 0.0 for name, part in zip(mapped, parts, strict=True)}


def _rows(table: Table, moments: Moments, start: int, stop: int) -> tuple[Array, Array]:
    """Return centred rows as float32 and 1 / length of each, 0 for rows that have no direction."""
    mean, lengths = moments.means[1], moments.norms[1][start:stop]
    middling = (lengths > MIDDLING[0]) & (lengths < MIDDLING[1])
    if not middling.all():  # their squares leave the range of float32
        rows = _unit(table.values(start, stop) - mean)
        return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0), np.ones(len(rows), "f4")
    rows = table.singles(start, stop) - mean.astype("f4")
    squares = np.einsum("ij,ij->i", rows, rows)
    return rows, np.divide(1, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)


def _unit(rows: Array) -> Array:
    """Scale rows to length 1, as float32. Zero rows stay zero."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = np.where(lengths > 0, rows / lengths, 0).astype("f4")
    return unit
