"""The sampled figures of long tables against those of all tokens, and the fast sums against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.constructed import Array, embedding, orthogonal
from tieconv.analysis import alignment_measures as pair_figures
from tieconv.analysis.alignment_measures import Sample, _rotation, compare, draw, linear, local, sampled_rows, sums
from tieconv.analysis.token_tables import Table, join

V, D = 6000, 24


def like(seed: int = 0, rows: int = V) -> list[Table]:
    """Two tables with rows of unlike length and few strong directions, alike in part."""
    rng = np.random.default_rng(seed)
    e = embedding(rng, rows, D)
    u = e @ orthogonal(rng, D) + 0.8 * e.std() * embedding(rng, rows, D)
    return [Table.of(name, part.astype(np.float32)) for name, part in (("E", e), ("U", u))]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of this size count as long."""
    monkeypatch.setattr(pair_figures, "EXACT", 2000)
    monkeypatch.setattr(pair_figures, "MAPPED", 1500)


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
@pytest.mark.usefixtures("small")
def test_samples_agree_with_all_tokens() -> None:
    """The exact value is inside the printed interval of each sampled figure, and only sampled figures have one."""
    outside = 0
    for seed in range(3):
        tables, pairs = like(seed), {"E→U": (0, 1)}
        sampled, exact = (compare(tables, pairs, queries=800, seed=seed, exact=e) for e in (None, True))
        assert exact.figures["E→U"]["knn"].n == V and sampled.figures["E→U"]["knn"].n == 800
        for name in ("identity", "procrustes", "least squares", "knn"):
            figure, true = sampled.figures["E→U"][name], exact.figures["E→U"][name]
            low, high = figure.value - 1.96 * figure.error, figure.value + 1.96 * figure.error
            assert f"{low:.4f} to {high:.4f}" in figure.interval and not true.interval
            outside += not low <= true.value <= high
        assert sampled.figures["E→U"]["cka"].value == pytest.approx(exact.figures["E→U"]["cka"].value, rel=1e-6)
    assert outside <= 2  # of twelve 95 % intervals


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_floor_of_a_sample_is_that_of_a_permutation(seed: int) -> None:
    """With the other tokens drawn from the limit law, the floors are those of permutations of all tokens."""
    tables, pairs = like(seed), {"E→U": (0, 1)}
    sampled, exact = (compare(tables, pairs, exact=e).figures["E→U"] for e in (None, True))
    for name in ("identity", "procrustes", "least squares"):
        assert sampled[name].floor == pytest.approx(exact[name].floor, abs=0.012), name
    assert sampled["cka"].floor == pytest.approx(exact["cka"].floor, rel=0.4)
    assert exact["procrustes"].floor > 0.02  # not zero: the floor is worth its name


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


def test_sampled_rows_in_memory_change_nothing() -> None:
    """Rows that are held give the figures of rows that are read again."""
    joined = join(like())
    places, order = np.arange(0, V, 3), np.random.default_rng(3).permutation(V // 3)
    known = sums(joined, [(0, 1)])
    read = linear(joined, 0, 1, order, known, places)
    known.sample = sampled_rows(joined, known, places)
    assert linear(joined, 0, 1, order, known, places) == read
