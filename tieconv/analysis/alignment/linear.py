"""How far one table is a linear map of another: identity, orthogonal Procrustes, least squares, CKA, streamed.

Both tables are column-centred. Everything follows from sums of products over rows, accumulated in float64, and one
second pass that takes the cosine of each mapped row with its target. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import pi, sqrt

import numpy as np

from tieconv.analysis.alignment.token_tables import Array, Joined
from tieconv.analysis.relation.linear_map import solve
from tieconv.checkpoint.value_type import record

MAPS = ("identity", "procrustes", "least squares")

_ROUNDING = 1e-10
"""Share of the largest energy that sums of float32 products leave in a direction that is not there."""


@record
class Linear:
    """Mean per-token cosine after each map (``None`` where widths differ) and CKA."""

    cosines: dict[str, float | None]
    cka: float


@record
class Moments:
    """A table (n, d) about its mean: ``mean`` (d,) float32, ``gram`` (d, d), ``rest`` (d,) the sums that remain."""

    mean: Array
    gram: Array
    rest: Array


def moments(joined: Joined, which: int) -> Moments:
    """Of table ``which``; two passes, so that the sums of products keep their digits."""
    width = joined.tables[which].width
    total = np.zeros(width)
    for places in joined.blocks():
        total += joined.take(which, places).sum(axis=0, dtype=np.float64)
    mean = (total / joined.count).astype(np.float32)
    gram, rest = np.zeros((width, width)), np.zeros(width)
    for places in joined.blocks():
        rows = joined.take(which, places) - mean
        gram += rows.T @ rows
        rest += rows.sum(axis=0, dtype=np.float64)
    return Moments(mean, gram - np.outer(rest, rest) / joined.count, rest)


def linear(
    joined: Joined,
    source: int,
    target: int,
    shuffle: Array | None = None,
    known: Sequence[Moments] | None = None,
) -> Linear:
    """How well the rows of table ``source`` map onto those of ``target``.

    ``shuffle``, a permutation of the common tokens, pairs each token with another: what chance gives. ``known`` are
    the `moments` of all tables.
    """
    left, right = (known[which] if known else moments(joined, which) for which in (source, target))
    cross = np.zeros((len(left.mean), len(right.mean)))
    for a, b in _pairs(joined, source, target, shuffle):
        cross += (a - left.mean).T @ (b - right.mean)
    cross -= np.outer(left.rest, right.rest) / joined.count
    maps = _maps(left.gram, cross)
    totals = dict.fromkeys(maps, 0.0)
    for a, b in _pairs(joined, source, target, shuffle):
        a, b = a - left.mean, b - right.mean
        for name, matrix in maps.items():
            totals[name] += _cosines(a if matrix is None else a @ matrix, b)
    cosines = {name: totals[name] / joined.count if name in maps else None for name in MAPS}
    return Linear(cosines, _cka(left.gram, right.gram, cross))


def expected(measure: str, tokens: int, width: int) -> float:
    """What unrelated Gaussian tables of (tokens, width) give; checked against permutations in the tests."""
    fraction = min(1.0, width / tokens)
    floors = {
        "identity": 0.0,
        "procrustes": 8 / (3 * pi) * sqrt(fraction),
        "least squares": sqrt(fraction),
        "cka": width / (tokens + width),
    }
    return floors[measure]


def _pairs(joined: Joined, source: int, target: int, shuffle: Array | None) -> Iterator[tuple[Array, Array]]:
    for places in joined.blocks():
        partners = places if shuffle is None else shuffle[places]
        yield joined.take(source, places), joined.take(target, partners)


def _maps(gram: Array, cross: Array) -> dict[str, Array | None]:
    """Each map as a float32 matrix of (source width, target width), ``None`` for the identity."""
    maps: dict[str, Array | None] = {}
    if cross.shape[0] == cross.shape[1]:
        left, _, right = np.linalg.svd(cross)
        maps |= {"identity": None, "procrustes": (left @ right).astype(np.float32)}
    return maps | {"least squares": solve(gram, cross, _ROUNDING).astype(np.float32)}


def _cosines(mapped: Array, target: Array) -> float:
    """The sum of the cosines of rows; a row that the map sends to nothing counts as 0."""
    lengths = np.linalg.norm(mapped, axis=1).astype(np.float64) * np.linalg.norm(target, axis=1)
    products = np.einsum("ij,ij->i", mapped, target, dtype=np.float64)
    return float(np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0).sum())


def _cka(left: Array, right: Array, cross: Array) -> float:
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.linalg.norm(cross)) ** 2 / scale if scale > 0 else 0.0
