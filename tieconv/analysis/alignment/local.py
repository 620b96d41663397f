"""Measures that need no map: nearest neighbours (KNN), pair similarities (RSA) and row norms.

KNN and RSA use sampled tokens and rows as they are stored, not centred. Imports numpy: import it lazily.
"""

from __future__ import annotations

import numpy as np

from tieconv.analysis.alignment.token_tables import Array, Joined
from tieconv.checkpoint.value_type import record

NEIGHBOURS = 10
PAIRS = 200_000


@record
class Local:
    """The local measures of one table: nearest tokens of the sample, cosines of random pairs, and all row norms."""

    neighbours: Array  # (queries, k) places, sorted
    cosines: Array  # (pairs,)
    norms: Array  # (tokens,)


@record
class Sample:
    """The sampled tokens, as places of the common order, and pairs of them."""

    queries: Array
    pairs: Array  # (pairs, 2) indices into queries


def draw(count: int, queries: int, chance: np.random.Generator) -> Sample:
    """Draw at most ``queries`` of ``count`` tokens, and at most `PAIRS` pairs of different ones."""
    chosen = np.sort(chance.permutation(count)[: min(queries, count)])
    first, second = chance.integers(0, len(chosen), (2, min(PAIRS, 4 * len(chosen) ** 2)))
    return Sample(chosen, np.stack([first, second], axis=1)[first != second])


def local(joined: Joined, which: int, sample: Sample, k: int) -> Local:
    """Return the local measures of table ``which`` over a sample, in one pass over its rows."""
    asked = _units(joined.take(which, sample.queries))
    norms = np.empty(joined.count)
    nearest = _Nearest(len(sample.queries), k)
    for places in joined.blocks():
        rows = joined.take(which, places)
        norms[places] = np.linalg.norm(rows, axis=1)
        nearest.add(_alike(asked, _units(rows), sample.queries, places), places)
    left, right = sample.pairs.T
    cosines = np.concatenate(
        [np.einsum("ij,ij->i", asked[a], asked[b]) for a, b in zip(_parts(left), _parts(right), strict=True)]
    )
    return Local(np.sort(nearest.places, axis=1), cosines, norms)


class _Nearest:
    """The k most similar places of each query so far."""

    def __init__(self, queries: int, k: int) -> None:
        self.places = np.full((queries, k), -1)
        self.scores = np.full((queries, k), -np.inf, np.float32)

    def add(self, scores: Array, places: Array) -> None:
        """Add the scores (queries, places) of ``places``."""
        k = self.scores.shape[1]
        scores = np.concatenate([self.scores, scores], axis=1)
        names = np.concatenate([self.places, np.broadcast_to(places, (len(scores), len(places)))], axis=1)
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        self.scores, self.places = np.take_along_axis(scores, best, 1), np.take_along_axis(names, best, 1)


def _alike(asked: Array, rows: Array, queries: Array, places: Array) -> Array:
    scores: Array = asked @ rows.T
    own = np.isin(queries, places)
    scores[own, queries[own] - places[0]] = -np.inf  # a token does not count as its neighbour
    return scores


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
    units: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def _parts(numbers: Array) -> list[Array]:
    return np.array_split(numbers, max(1, len(numbers) // 8192))
