"""Measures that need no map: nearest neighbours (KNN), pair similarities (RSA) and row norms.

Rows are as stored, not centred. RSA uses sampled tokens, and KNN sampled ones or all. Imports numpy: import it lazily.
"""

from __future__ import annotations

import numpy as np

from tieconv.analysis.alignment.token_tables import Array, Joined
from tieconv.checkpoint.value_type import record

NEIGHBOURS = 10
PAIRS = 200_000

AT_ONCE = 2048
"""The most tokens whose neighbours are searched in one pass over the rows."""


@record
class Local:
    """The local measures of one table: nearest tokens of the sample, cosines of random pairs, and all row norms."""

    neighbours: Array  # (queries, k) places, sorted
    cosines: Array  # (pairs,)
    norms: Array  # (tokens,)


@record
class Sample:
    """The tokens whose neighbours are searched (``queries``), those of the random ``pairs``, and those that are mapped.

    All are places of the common order; ``pairs`` (pairs, 2) are indices into ``drawn``.
    """

    queries: Array
    drawn: Array
    pairs: Array
    mapped: Array


def draw(count: int, queries: int, chance: np.random.Generator, *, mapped: int = 0, exact: bool = False) -> Sample:
    """Draw at most ``queries`` of ``count`` tokens, and at most `PAIRS` pairs of different ones.

    ``mapped`` tokens are mapped, 0 for all. With ``exact``, all neighbours are searched and all tokens are mapped.
    """
    order = chance.permutation(count)
    drawn = np.sort(order[: min(queries, count)])
    first, second = chance.integers(0, len(drawn), (2, min(PAIRS, 4 * len(drawn) ** 2)))
    pairs = np.stack([first, second], axis=1)[first != second]
    every = np.arange(count)
    chosen = every if exact or not mapped else np.sort(order[: min(mapped, count)])
    return Sample(every if exact else drawn, drawn, pairs, chosen)


def local(joined: Joined, which: int, sample: Sample, k: int) -> Local:
    """Return the local measures of table ``which`` over a sample.

    Each pass over the rows searches the neighbours of one block of queries, at most `AT_ONCE`. Cosines are float32. Of
    tokens with equal cosines, those with the lowest places count.
    """
    norms = np.concatenate([_lengths(joined.take(which, places)) for places in joined.blocks()])
    step = min(AT_ONCE, joined.block_rows)
    parts = (sample.queries[start : start + step] for start in range(0, len(sample.queries), step))
    neighbours = np.concatenate([_nearest(joined, which, queries, norms, k) for queries in parts])
    drawn = _units(joined.take(which, sample.drawn))
    left, right = sample.pairs.T
    cosines = (drawn @ drawn.T)[left, right]
    return Local(np.sort(neighbours, axis=1), cosines, norms.astype(np.float64))


def _nearest(joined: Joined, which: int, queries: Array, norms: Array, k: int) -> Array:
    """Return the ``k`` places with the largest cosine to each query, without the query itself: (queries, k)."""
    asked, nearest = _units(joined.take(which, queries)), _Nearest(len(queries), k)
    for places in joined.blocks():
        scores = asked @ joined.take(which, places).T
        scores /= norms[places]
        own = np.flatnonzero((queries >= places[0]) & (queries <= places[-1]))
        scores[own, queries[own] - places[0]] = -np.inf  # a token does not count as its neighbour
        nearest.add(scores, int(places[0]))
    return nearest.places


class _Nearest:
    """The k most similar places of each query so far, the best first, then the lowest."""

    def __init__(self, queries: int, k: int) -> None:
        self.places = np.full((queries, k), -1)
        self.scores = np.full((queries, k), -np.inf, np.float32)

    def add(self, scores: Array, first: int) -> None:
        """Add the scores (queries, n) of the places from ``first`` on, which are higher than all before."""
        k = self.scores.shape[1]
        better = scores > self.scores[:, -1:]  # an equal score of a higher place does not count
        if np.count_nonzero(better) > 4 * self.scores.size and scores.shape[1] > k:
            better &= scores >= np.partition(scores, -k, axis=1)[:, -k, None]
        rows, columns = np.nonzero(better)
        if not len(rows):
            return
        which, starts, counts = np.unique(rows, return_index=True, return_counts=True)
        slots = np.arange(len(rows)) - np.repeat(starts, counts), np.repeat(np.arange(len(which)), counts)
        added = np.full((len(which), int(counts.max())), -np.inf, np.float32)
        names = np.full(added.shape, -1)
        added[slots[::-1]], names[slots[::-1]] = scores[rows, columns], columns + first
        added = np.concatenate([self.scores[which], added], axis=1)
        names = np.concatenate([self.places[which], names], axis=1)
        best = np.argsort(-added, axis=1, kind="stable")[:, :k]
        self.scores[which] = np.take_along_axis(added, best, 1)
        self.places[which] = np.take_along_axis(names, best, 1)


def overlap(source: Local, target: Local) -> Array:
    """Return the share of each query's neighbours that both tables have in common, (queries,)."""
    k = source.neighbours.shape[1]
    both = np.sort(np.concatenate([source.neighbours, target.neighbours], axis=1), axis=1)
    shares: Array = (both[:, 1:] == both[:, :-1]).sum(axis=1) / k
    return shares


def spearman(left: Array, right: Array) -> float:
    """Return the rank correlation, with ties at their mean rank."""
    return pearson(_ranks(left), _ranks(right))


def pearson(left: Array, right: Array) -> float:
    """Return the correlation, or 0 if a side is constant."""
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale > 0 else 0.0


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _units(rows: Array) -> Array:
    units: Array = rows / _lengths(rows)[:, None]
    return units


def _lengths(rows: Array) -> Array:
    lengths: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths
