"""Measure how well a linear map explains a table: identity, orthogonal Procrustes, least squares and CKA, streamed.

Both tables are column-centred. One pass over all tables sums products in float32 inside a block of rows, and in
float64 across blocks. Then the mapped rows of tokens are compared with their targets: all tokens, or a sample. Imports
numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import pi, sqrt

import numpy as np

from tieconv.analysis.alignment.token_tables import FEWEST, Array, Joined
from tieconv.analysis.relation.linear_map import Inverse
from tieconv.checkpoint.value_type import record

MAPS = ("identity", "procrustes", "least squares")

_ROUNDING = 1e-10
"""Share of the largest energy that rounding of float32 products may leave in an empty direction."""

_STEEP = 1e-13
"""Squared ratio of singular values below which eigenvectors of CᵀC are too inexact to start a polar factor."""

_INEXACT = 64 * np.finfo(np.float64).eps
"""Error of a polar factor from eigenvectors of CᵀC, for each unit of its condition number."""

AT_ONCE = 4
"""Blocks of rows whose products are summed at once in float32. Fewer sums in float64 cost less."""

Pair = tuple[int, int]
"""The numbers of a source table and a target table."""


@record
class Linear:
    """Mean per-token cosine after each map (``None`` if widths differ), their standard errors, and CKA."""

    cosines: dict[str, float | None]
    cka: float
    errors: dict[str, float]


@dataclass
class Sums:
    """Moments of joined tables: for each table ``means`` (d,) float32 and centred ``grams`` (d, d), both by number.

    ``crosses`` maps a pair of tables to AᵀB, centred, (d, d'). ``sample`` holds the centred rows of each table's mapped
    tokens. It is empty if they are read block by block. ``inverse`` keeps what it computes.
    """

    means: list[Array]
    grams: list[Array]
    crosses: dict[Pair, Array]
    sample: list[Array] = field(default_factory=list)
    _inverses: dict[int, Inverse] = field(default_factory=dict)

    def inverse(self, which: int) -> Inverse:
        """Return the inverse of the gram of a table, without directions that are rounding."""
        if which not in self._inverses:
            self._inverses[which] = Inverse.of(self.grams[which], _ROUNDING)
        return self._inverses[which]


def sums(joined: Joined, pairs: Sequence[Pair] = ()) -> Sums:
    """Return the moments of every table and of ``pairs``, in one pass. Rows near the mean keep the digits of the sums.

    Memory: a d×d matrix of float64 for each table and pair, and a block of rows of each table.
    """
    every = range(len(joined.tables))
    some = np.unique(np.linspace(0, joined.count - 1, min(joined.count, joined.block_rows, 1024)).astype(int))
    centres = [joined.take(which, some).mean(axis=0, dtype=np.float64).astype(np.float32) for which in every]
    widths = [table.width for table in joined.tables]
    rests, grams = [np.zeros(width) for width in widths], [np.zeros((width, width)) for width in widths]
    crosses = {pair: np.zeros((widths[pair[0]], widths[pair[1]])) for pair in pairs}
    product = np.empty((max(widths), max(widths)), np.float32)  # new memory for each product would cost its page faults
    for part in joined.parts(joined.count, AT_ONCE):
        rows = [joined.take(which, np.arange(part.start, part.stop)) for which in every]
        for which in every:
            rows[which] -= centres[which]
            rests[which] += rows[which].sum(axis=0, dtype=np.float64)
            grams[which] += _product(rows[which], rows[which], product)
        for (a, b), cross in crosses.items():
            cross += _product(rows[a], rows[b], product)
    for which in every:
        grams[which] -= np.outer(rests[which], rests[which]) / joined.count
    for (a, b), cross in crosses.items():
        cross -= np.outer(rests[a], rests[b]) / joined.count
    means = [(centres[which] + rests[which] / joined.count).astype(np.float32) for which in every]
    return Sums(means, grams, crosses)


def _product(left: Array, right: Array, memory: Array) -> Array:
    """Return leftᵀ·right, (d, d'), in the first elements of ``memory``."""
    shape = left.shape[1], right.shape[1]
    product: Array = np.matmul(left.T, right, out=memory.reshape(-1)[: shape[0] * shape[1]].reshape(shape))
    return product


def sampled_rows(joined: Joined, known: Sums, places: Array) -> list[Array]:
    """Return the centred rows at ``places`` of every table, as float32."""
    return [joined.take(which, places) - known.means[which] for which in range(len(joined.tables))]


def linear(
    joined: Joined,
    source: int,
    target: int,
    shuffle: Array | None = None,
    known: Sums | None = None,
    places: Array | None = None,
) -> Linear:
    """Measure how well the rows of table ``source`` map to those of ``target``.

    The maps are fitted on all tokens. The cosines are of the tokens at ``places``, by default of all. ``shuffle``, a
    permutation of 0 … len(places) − 1, pairs each of these tokens with another, which gives the chance value. The other
    tokens then take part as a permutation does on average: see `_shuffled`. ``known`` are the `sums` of all tables.
    """
    known = known or sums(joined, [(source, target)])
    places = np.arange(joined.count) if places is None else places
    order = np.arange(len(places)) if shuffle is None else shuffle
    cross = known.crosses[source, target]
    if shuffle is not None:
        cross = _shuffled(joined, (source, target), known, places, order)
    maps = _maps(known, source, cross)
    values = {name: np.empty(len(places)) for name in maps}
    for part, a, b in _rows(joined, (source, target), known, places, order):
        for name, matrix in maps.items():
            values[name][part] = _cosines(a if matrix is None else a @ matrix, b)
    cosines = {name: float(values[name].mean()) if name in maps else None for name in MAPS}
    errors = {name: float(sample.std()) / sqrt(len(places)) for name, sample in values.items()}
    return Linear(cosines, _cka(known.grams[source], known.grams[target], cross), errors)


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


def _rows(joined: Joined, pair: Pair, known: Sums, places: Array, order: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Yield centred rows of the source at ``places`` and of the target at ``places[order]``, block by block."""
    for part in joined.parts(len(places)):
        if known.sample:
            yield part, known.sample[pair[0]][part], known.sample[pair[1]][order[part]]
            continue
        a, b = joined.take(pair[0], places[part]), joined.take(pair[1], places[order[part]])
        yield part, a - known.means[pair[0]], b - known.means[pair[1]]


def _shuffled(joined: Joined, pair: Pair, known: Sums, places: Array, order: Array) -> Array:
    """Return AᵀB if the tokens at ``places`` have those at ``places[order]`` as partners, and all others random ones.

    Over all permutations of n centred rows, AᵀΠB has the mean 0. The covariance of its entries is
    AᵀA ⊗ BᵀB / (n − 1). It tends to a normal law (Hoeffding 1951). The products of ``places`` are summed, and the sum
    of the other tokens is drawn from that law. So a few thousand tokens give the floor of all.
    """
    cross = np.zeros_like(known.crosses[pair])
    for _, a, b in _rows(joined, pair, known, places, order):
        cross += a.T @ b
    others = joined.count - len(places)
    if others < FEWEST:
        return cross
    roots = [known.inverse(which).root.astype(np.float32) for which in pair]
    noise = np.random.default_rng(0).standard_normal((roots[0].shape[1], roots[1].shape[1]), np.float32)
    cross += roots[0] @ noise @ roots[1].T * (sqrt(others) / joined.count)
    return cross


def _maps(known: Sums, source: int, cross: Array) -> dict[str, Array | None]:
    """Return each map as a float32 matrix (source width, target width), ``None`` for the identity."""
    maps: dict[str, Array | None] = {}
    if cross.shape[0] == cross.shape[1]:
        maps |= {"identity": None, "procrustes": _rotation(cross)}
    return maps | {"least squares": known.inverse(source).times(cross).astype(np.float32)}


def _rotation(cross: Array) -> Array:
    """Return the orthogonal matrix Q with the largest trace of Qᵀ·cross, (d, d) float32: its polar factor.

    C·(CᵀC)^-½ costs less than a singular value decomposition. Newton-Schulz steps remove its error: each squares it,
    and takes a quarter of the time of the rest. Matrices with nearly empty directions are decomposed.
    """
    energies, vectors = np.linalg.eigh(cross.T @ cross)
    if not energies[0] > _STEEP * energies[-1]:
        left, _, right = np.linalg.svd(cross)
        turned: Array = (left @ right).astype(np.float32)
        return turned
    rotation: Array = (((cross @ vectors) / np.sqrt(energies)) @ vectors.T).astype(np.float32)
    error = _INEXACT * energies[-1] / energies[0]
    while error > np.finfo(np.float32).eps:
        error *= 1.5 * error
        rotation = 1.5 * rotation - 0.5 * (rotation @ (rotation.T @ rotation))
    return rotation


def _cosines(mapped: Array, target: Array) -> Array:
    """Return the cosines of rows, (n,). A row that maps to zero counts as 0."""
    squares = (np.einsum("ij,ij->i", rows, rows).astype(np.float64) for rows in (mapped, target))
    lengths = np.sqrt(np.prod(list(squares), axis=0))
    products = np.einsum("ij,ij->i", mapped, target).astype(np.float64)
    cosines: Array = np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0)
    return cosines


def _cka(left: Array, right: Array, cross: Array) -> float:
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.linalg.norm(cross)) ** 2 / scale if scale > 0 else 0.0
