"""The sampled figures of long tables against those of all tokens, and the fast sums against float64."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.analysis.constructed import Array, embedding, orthogonal
from tieconv.analysis import alignment_measures as pair_figures
from tieconv.analysis.alignment_measures import Sample, _rotation, compare, draw, local, sums
from tieconv.analysis.token_tables import Table, join

V, D = 6000, 24
SEEDS, RARELY = 20, 17
"""Tables, and how many intervals of 95 % hold the value at least: fewer have a chance of 0.016."""


def like(seed: int = 0, rows: int = V, unlike: float = 0.8) -> list[Table]:
    """Two tables with rows of unlike length and few strong directions, alike in part or not at all."""
    rng = np.random.default_rng(seed)
    e = embedding(rng, rows, D)
    shared, noise = e @ orthogonal(rng, D), e.std() * embedding(rng, rows, D)
    u = noise if np.isinf(unlike) else shared + unlike * noise
    return [Table.of(name, part.astype(np.float32)) for name, part in (("E", e), ("U", u))]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of this size count as long."""
    monkeypatch.setattr(pair_figures, "EXACT", 2000)
    monkeypatch.setattr(pair_figures, "MAPPED", 1500)
    monkeypatch.setattr(pair_figures, "INSIDE", 800)


def brute(matrix: Array, k: int = 10) -> Array:
    """Return the nearest places of each row by float64 cosines, of equal ones the lowest."""
    units = matrix.astype(np.float64) / np.linalg.norm(matrix.astype(np.float64), axis=1, keepdims=True)
    scores = units @ units.T
    np.fill_diagonal(scores, -np.inf)
    return np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :k], axis=1)


def every(rows: int) -> Sample:
    return draw(rows, 1000, np.random.default_rng(0), exact=True)


@pytest.mark.parametrize("rows", [1300, 2600])
def test_exact_neighbours_are_those_of_float64(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is asked, over several blocks of queries and of rows, and its neighbours are the nearest."""
    monkeypatch.setattr("tieconv.analysis.token_tables.BLOCK", 4 * D * 700)
    joined = join(like(rows=rows))
    for which in (0, 1):
        searched = local(joined, which, every(rows), 10).neighbours
        expected = brute(joined.take(which, np.arange(rows)))
        assert len(searched) == rows
        assert (searched == expected).all(axis=1).mean() > 0.999  # cosines closer than float32 may exchange a neighbour


def test_equal_cosines_go_to_the_lowest_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that occur many times are exact ties: the lowest places win, whatever the blocks are."""
    monkeypatch.setattr("tieconv.analysis.token_tables.BLOCK", 4 * 4 * 64)
    rows = np.tile(np.eye(4, dtype=np.float32), (100, 1))  # cosines are 0 or 1 without rounding
    joined = join([Table.of("E", rows), Table.of("U", rows)])
    searched = local(joined, 0, every(400), 10).neighbours
    assert searched.tolist() == brute(rows).tolist()
    assert searched[0].tolist() == list(range(4, 44, 4)) and searched[399].tolist() == list(range(3, 43, 4))


@pytest.mark.slow
@pytest.mark.parametrize("unlike", [0.0, 0.8, np.inf])
def test_intervals_contain_the_figures_of_all_tokens(small: None, unlike: float) -> None:
    """The exact value is inside at least 95 % of the intervals, of like, half like and unrelated tables."""
    inside, names = dict.fromkeys(("identity", "procrustes", "least squares", "cka", "knn"), 0), {"E→U": (0, 1)}
    for seed in range(SEEDS):
        tables = like(seed, unlike=unlike)
        sampled, exact = (compare(tables, names, queries=300, seed=seed, exact=e).figures["E→U"] for e in (None, True))
        for name in inside:
            true, low, high = exact[name].value, *map(float, re.findall(r"[-.0-9]+", sampled[name].interval[16:])[:2])
            assert true is not None and not exact[name].interval
            inside[name] += low - 1e-4 <= true <= high + 1e-4  # four digits are printed
    assert min(inside.values()) >= RARELY, inside


def test_the_floor_of_a_sample_is_the_mean_of_permutations(small: None) -> None:
    """Maps that are measured on other tokens have no floor above 0; that of CKA is what permutations give."""
    tables = like()
    sampled, exact = (compare(tables, {"E→U": (0, 1)}, exact=e).figures["E→U"] for e in (None, True))
    assert sampled["cka"].floor == pytest.approx(exact["cka"].floor, rel=0.4)
    shuffled = [tables[0], Table.of("U", np.random.default_rng(3).permutation(tables[1].read(np.arange(V))))]
    for name, figure in compare(shuffled, {"E→U": (0, 1)}).figures["E→U"].items():
        assert name in ("knn", "rsa", "norms") or abs(figure.value - figure.floor) < 4 * figure.error, name


def test_sums_are_those_of_float64() -> None:
    """Centred products of float32 blocks are off by less than 10⁻⁵, also with a large common vector."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((V, D)).astype(np.float32) + 30 for _ in "ab")
    joined = join([Table.of("E", a), Table.of("U", b)])
    known = sums(joined, [(0, 1)])
    left, right = (m.astype(np.float64) - m.mean(axis=0, dtype=np.float64) for m in (a, b))
    scale = V
    for computed, expected in ((known.grams[0], left.T @ left), (known.grams[1], right.T @ right)):
        assert np.abs(computed - expected).max() < 1e-5 * scale
    assert np.abs(known.crosses[0, 1] - left.T @ right).max() < 1e-5 * scale


@pytest.mark.parametrize("ratio", [1.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 0.0])
def test_the_rotation_is_the_polar_factor(ratio: float) -> None:
    """It equals that of the singular value decomposition for any condition, and is orthogonal."""
    rng = np.random.default_rng(2)
    sizes = np.geomspace(1, ratio, D) if ratio else np.append(np.ones(D - 1), 0.0)
    left, right = orthogonal(rng, D), orthogonal(rng, D)
    cross = (left * sizes) @ right * 1e5
    turned = _rotation(cross).astype(np.float64)
    assert np.abs(turned.T @ turned - np.eye(D)).max() < 1e-5
    assert np.trace(turned.T @ cross) == pytest.approx(sizes.sum() * 1e5, rel=1e-6)
