"""Measure how well a linear map explains a table: identity, orthogonal Procrustes, least squares and CKA, streamed.

Both tables are column-centred. One pass sums products over rows in float64. A second pass takes the cosine of each
mapped row with its target. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import pi, sqrt

import numpy as np

from tieconv.analysis.alignment.token_tables import Array, Joined
from tieconv.analysis.relation.linear_map import Inverse
from tieconv.checkpoint.value_type import record

MAPS = ("identity", "procrustes", "least squares")

_ROUNDING = 1e-10
"""Share of the largest energy that rounding of float32 products may leave in an empty direction."""


@record
class Linear:
    """Mean per-token cosine after each map (``None`` if widths differ) and CKA."""

    cosines: dict[str, float | None]
    cka: float


@record
class Moments:
    """Moments of a table (n, d): ``mean`` (d,) float32, centred ``gram`` (d, d), ``rest`` (d,) sums after centring."""

    mean: Array
    gram: Array
    rest: Array


def moments(joined: Joined, which: int) -> Moments:
    """Return the moments of table ``which``. Two passes keep the digits of the sums of products."""
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
    """Measure how well the rows of table ``source`` map to those of ``target``.

    ``shuffle``, a permutation of the common tokens, pairs each token with another, which gives the chance value.
    ``known`` are the `moments` of all tables.
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
    """Return the value of ``measure`` for unrelated Gaussian tables (tokens, width). Tests compare permutations."""
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
    """Return each map as a float32 matrix (source width, target width), ``None`` for the identity."""
    maps: dict[str, Array | None] = {}
    if cross.shape[0] == cross.shape[1]:
        left, _, right = np.linalg.svd(cross)
        maps |= {"identity": None, "procrustes": (left @ right).astype(np.float32)}
    return maps | {"least squares": Inverse.of(gram, _ROUNDING).times(cross).astype(np.float32)}


def _cosines(mapped: Array, target: Array) -> float:
    """Return the sum of the cosines of rows. A row that maps to zero counts as 0."""
    lengths = np.linalg.norm(mapped, axis=1).astype(np.float64) * np.linalg.norm(target, axis=1)
    products = np.einsum("ij,ij->i", mapped, target, dtype=np.float64)
    return float(np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0).sum())


def _cka(left: Array, right: Array, cross: Array) -> float:
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.linalg.norm(cross)) ** 2 / scale if scale > 0 else 0.0
