"""How far one table is a linear map of another: identity, orthogonal Procrustes, least squares, CKA, streamed.

Both tables are column-centred. Everything follows from sums of products over rows, accumulated in float64, and one
second pass that takes the cosine of each mapped row with its target. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import pi, sqrt

import numpy as np

from tieconv.analysis.alignment_tables import Array, Joined

MAPS = ("identity", "procrustes", "least squares")


@dataclass(frozen=True)
class Linear:
    """Mean per-token cosine after each map (``None`` where widths differ) and CKA."""

    cosines: dict[str, float | None]
    cka: float


@dataclass
class _Products:
    """Sums over rows of a left table of (n, a) and a right one of (n, b)."""

    a: int
    b: int
    rows: int = 0
    left: Array = field(init=False)
    right: Array = field(init=False)
    cross: Array = field(init=False)
    left_sum: Array = field(init=False)
    right_sum: Array = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.right, self.cross = (
            np.zeros(s) for s in ((self.a, self.a), (self.b, self.b), (self.a, self.b))
        )
        self.left_sum, self.right_sum = np.zeros(self.a), np.zeros(self.b)

    def add(self, left: Array, right: Array) -> None:
        self.rows += len(left)
        self.left += left.T @ left
        self.right += right.T @ right
        self.cross += left.T @ right
        self.left_sum += left.sum(axis=0, dtype=np.float64)
        self.right_sum += right.sum(axis=0, dtype=np.float64)

    def centre(self) -> None:
        """From sums of products to those about the column means."""
        self.left -= np.outer(self.left_sum, self.left_sum) / self.rows
        self.right -= np.outer(self.right_sum, self.right_sum) / self.rows
        self.cross -= np.outer(self.left_sum, self.right_sum) / self.rows


def linear(joined: Joined, source: int, target: int, shuffle: Array | None = None) -> Linear:
    """How well the rows of table ``source`` map onto those of ``target``.

    ``shuffle``, a permutation of the common tokens, pairs each token with another: what chance gives.
    """
    sums = _Products(joined.tables[source].width, joined.tables[target].width)
    means = _means(joined, source), _means(joined, target)
    for left, right in _pairs(joined, source, target, shuffle):
        sums.add(left - means[0], right - means[1])  # nearly centred first: the sums then keep their digits
    sums.centre()
    maps = _maps(sums)
    totals = dict.fromkeys(maps, 0.0)
    for left, right in _pairs(joined, source, target, shuffle):
        left, right = left - means[0], right - means[1]
        for name, matrix in maps.items():
            totals[name] += _cosines(left if matrix is None else left @ matrix, right)
    cosines = {name: totals[name] / joined.count if name in maps else None for name in MAPS}
    return Linear(cosines, _cka(sums))


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
        other = places if shuffle is None else shuffle[places]
        yield joined.take(source, places), joined.take(target, other)


def _means(joined: Joined, which: int) -> Array:
    total = np.zeros(joined.tables[which].width)
    for places in joined.blocks():
        total += joined.take(which, places).sum(axis=0, dtype=np.float64)
    mean: Array = (total / joined.count).astype(np.float32)
    return mean


def _maps(sums: _Products) -> dict[str, Array | None]:
    """Each map as a float32 matrix of (a, b), ``None`` for the identity."""
    found: dict[str, Array | None] = {}
    if sums.a == sums.b:
        left, _, right = np.linalg.svd(sums.cross)
        found |= {"identity": None, "procrustes": (left @ right).astype(np.float32)}
    found["least squares"] = np.linalg.lstsq(sums.left, sums.cross, rcond=1e-10)[0].astype(np.float32)
    return found


def _cosines(mapped: Array, target: Array) -> float:
    """The sum of the cosines of rows; a row that the map sends to nothing counts as 0."""
    lengths = np.linalg.norm(mapped, axis=1).astype(np.float64) * np.linalg.norm(target, axis=1)
    products = np.einsum("ij,ij->i", mapped, target, dtype=np.float64)
    return float(np.divide(products, lengths, out=np.zeros(len(products)), where=lengths > 0).sum())


def _cka(sums: _Products) -> float:
    scale = np.linalg.norm(sums.left) * np.linalg.norm(sums.right)
    return float(np.linalg.norm(sums.cross) ** 2 / scale) if scale > 0 else 0.0
