"""Alignment: matrices with known answers, the map of tokens, samples of long tables, tokens of two vocabularies."""

from __future__ import annotations

import json
import re
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import save_file

from tests.analysis.constructed import Array, embedding, orthogonal
from tests.cli.run import ok
from tieconv import analyze
from tieconv.analysis import (
    alignment as own_tables,
    alignment_measures,
    alignment_measures as pair_figures,
    relation_maps,
)
from tieconv.analysis.alignment import Contest, Untied, align, verdict
from tieconv.analysis.alignment_measures import (
    Sample,
    _rotation,
    compare,
    draw,
    expected,
    linear,
    local,
    overlap,
    pearson,
    plane,
    spearman,
    sums,
)
from tieconv.analysis.token_tables import Table, join, token_bytes
from tieconv.checkpoint.results.analysis import POINTS, Measure, Section
from tieconv.errors import RefusedError

chance = np.random.default_rng(7)
V, D = 3000, 24


def gaussian(rows: int = V, width: int = D, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def profiled(seed: int) -> np.ndarray:
    """Unrelated to any other seed, with row norms of its own."""
    return gaussian(seed=seed) * np.random.default_rng(seed + 100).uniform(0.5, 2, (V, 1)).astype(np.float32)


def rotation(width: int = D, seed: int = 1) -> np.ndarray:
    return np.linalg.qr(gaussian(width, width, seed))[0]


def pair(left: np.ndarray, right: np.ndarray):
    return join([Table.of("a", left), Table.of("b", right)])


def figures(section: Section) -> dict[str, tuple[float | None, float | None, float | None]]:
    return {measure.name: (measure.value, measure.floor, measure.ceiling) for measure in section.measures}


def test_identity() -> None:
    """A table against itself: every cosine and CKA are 1, so are KNN, RSA and the norms."""
    table = profiled(0)
    found = figures(align(Table.of("T", table), Untied(Table.of("E", profiled(1)), Table.of("U", table))))
    for name in ("identity", "procrustes", "least squares", "cka", "knn", "rsa", "norms"):
        value = found[f"{name} U→T"][0]
        assert value == pytest.approx(1, abs=1e-4), name


def test_rotation_is_seen_through() -> None:
    """U = E·Q with a shift: Procrustes and CKA are 1, the identity cosine is not."""
    table = gaussian()
    found = linear(pair(table, table @ rotation() + 3), 0, 1)
    assert found.cosines["procrustes"] == pytest.approx(1, abs=1e-5)
    assert found.cka == pytest.approx(1, abs=1e-5)
    identity = found.cosines["identity"]
    assert identity is not None and abs(identity) < 0.5


def test_anisotropic_map() -> None:
    """U = E·M with M far from a rotation: least squares is exact and Procrustes is not."""
    table = gaussian()
    found = linear(pair(table, table @ (rotation() * np.geomspace(1, 100, D))), 0, 1)
    assert found.cosines["least squares"] == pytest.approx(1, abs=1e-4)
    procrustes = found.cosines["procrustes"]
    assert procrustes is not None and procrustes < 0.9


@pytest.mark.parametrize("factor", [1e-3, -2.0, 1e3])
def test_scaling(factor: float) -> None:
    """A scalar changes no direction: |cosine| 1, same neighbours, same norm profile."""
    table = profiled(0)
    joined = pair(table, np.float32(factor) * table)
    assert linear(joined, 0, 1).cosines["identity"] == pytest.approx(np.sign(factor), abs=1e-5)
    sample = draw(V, 200, chance)
    one, other = (local(joined, which, sample, 10) for which in (0, 1))
    assert overlap(one, other).mean() == pytest.approx(1, abs=0.01)
    assert pearson(one.norms, other.norms) == pytest.approx(1, abs=1e-6)
    assert spearman(one.cosines, other.cosines) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0])
def test_noise_levels(noise: float) -> None:
    """U = E + σ·noise: the identity cosine is 1/√(1+σ²), which fitted maps beat only by chance."""
    table = gaussian()
    found = linear(pair(table, table + noise * gaussian(seed=5)), 0, 1).cosines
    truth = 1 / sqrt(1 + noise**2)
    assert found["identity"] == pytest.approx(truth, abs=0.01)
    for name in ("procrustes", "least squares"):
        value = found[name]
        assert value is not None and truth - 0.01 < value < truth + expected(name, V, D) ** 2 + 0.01


@pytest.mark.parametrize("shape", [(4096, 96), (2000, 200), (500, 8)])
def test_floors_of_unrelated_tables(shape: tuple[int, int]) -> None:
    """Independent Gaussians give the floors of theory: 8/(3π)·√(d/V), √(d/V) and d/(V+d), not 0."""
    rows, width = shape
    joined = pair(gaussian(rows, width, 1), gaussian(rows, width, 2))
    found = linear(joined, 0, 1)
    slack = 3 / sqrt(rows * width) + 0.01
    assert found.cosines["identity"] == pytest.approx(0, abs=slack)
    assert found.cosines["procrustes"] == pytest.approx(8 / (3 * pi) * sqrt(width / rows), abs=slack)
    assert found.cosines["least squares"] == pytest.approx(sqrt(width / rows), abs=slack)
    assert found.cka == pytest.approx(width / (rows + width), abs=slack)
    sample = draw(rows, 500, chance)
    shared = overlap(*(local(joined, which, sample, 10) for which in (0, 1)))
    assert shared.mean() == pytest.approx(10 / (rows - 1), abs=4 * shared.std() / sqrt(len(shared)) + 1e-3)


def test_permuted_tokens_are_at_the_floor() -> None:
    """The same rows under other tokens: every measure falls to its floor, and the verdict claims nothing."""
    table, order = profiled(0), np.random.default_rng(3).permutation(V)
    section = align(Table.of("T", table[order]), Untied(Table.of("E", table), Table.of("U", profiled(1))))
    for name, (value, floor, _) in figures(section).items():
        if name.endswith("→T"):
            assert value == pytest.approx(floor, abs=0.06), name
    assert section.detail["shape"] == "none"


def test_tokens_bring_permuted_rows_together() -> None:
    """Another vocabulary order is seen through: rows are joined on token strings, strangers left out."""
    table, order = profiled(0), np.random.default_rng(3).permutation(V)
    words = [f"w{row}" for row in range(V)]
    shuffled = [words[row] if row % 10 else f"other {row}" for row in order]
    section = align(
        Table.of("T", table[order], shuffled), Untied(Table.of("E", profiled(1), words), Table.of("U", table, words))
    )
    assert section.detail["joined_by"] == "token string" and section.detail["tokens"] == V - V // 10
    assert figures(section)["identity U→T"][0] == pytest.approx(1, abs=1e-4)
    assert section.detail["shape"] == "output"


@pytest.mark.parametrize(("role", "shape"), [("E", "input"), ("U", "output")])
def test_verdict(role: str, shape: str) -> None:
    """A noisy copy of one role is called by it, whichever it is."""
    tables = {"E": profiled(1), "U": profiled(2)}
    tied = Table.of("T", tables[role] + 0.3 * gaussian(seed=9))
    section = align(tied, Untied(Table.of("E", tables["E"]), Table.of("U", tables["U"])))
    assert section.detail["shape"] == shape and f"{shape}-shaped" in section.sentence


def test_ceilings_too_near_chance_divide_nothing() -> None:
    """Both must be more than six standard errors above chance."""
    apart = (0.25, 0.125)
    for top, scores in ((0.5, (0.5, 0.5)), (0.45, (0.5, 0.625)), (0.4375, apart), (0.15, apart), (None, apart)):
        told = Contest("knn", (0.5, 0.25, 0.0625, 0.75), (0.375, 0.25, 0.03125, top)).to_dict()
        assert told["of_ceiling"] is (scores != apart)
        assert (told["input"], told["output"]) == pytest.approx(scores)


@pytest.mark.slow
def test_ceilings_change_the_answer() -> None:
    """An input role that is hardly reproducible is not beaten for that: scores are shares of their ceilings."""
    base_e, base_u = profiled(1), profiled(2)
    weak = [base_e + 0.7 * gaussian(seed=s) for s in (20, 21, 22)]  # three seeds of one noisy role
    strong = [base_u + 0.2 * gaussian(seed=s) for s in (30, 31)]
    tied = weak[2] + 0.7 * strong[0]
    untied = Untied(Table.of("E", weak[0]), Table.of("U", strong[0]))
    alone = align(Table.of("T", tied), untied)
    with_ceiling = align(Table.of("T", tied), untied, Untied(Table.of("E'", weak[1]), Table.of("U'", strong[1])))
    for before, after in zip(alone.detail["evidence"], with_ceiling.detail["evidence"], strict=True):
        figures_after = after.to_dict()
        assert figures_after["of_ceiling"] or after.measure == "norms"
        assert figures_after["input"] >= before.to_dict()["input"]
    found = figures(with_ceiling)
    assert found["knn E→T"][2] == found["knn E→E'"][0] and found["knn U→T"][2] == found["knn U→U'"][0]


def test_other_width() -> None:
    """Tables of another width: maps that need one width are refused with their reason, the others are measured."""
    table = profiled(0)
    wide = np.concatenate([table, 0.2 * gaussian(width=8, seed=4)], axis=1)
    section = align(Table.of("T", wide), Untied(Table.of("E", profiled(1)), Table.of("U", table)))
    found = {measure.name: measure for measure in section.measures}
    assert found["procrustes U→T"].value is None and "width" in found["procrustes U→T"].says
    assert found["least squares U→T"].value == pytest.approx(1, abs=0.05)
    assert section.detail["shape"] == "output"


def test_rows_without_direction_are_left_out() -> None:
    """Zero, infinite and NaN rows, padding and repeated strings take no part."""
    table = gaussian(200)
    words: list[str | None] = [f"w{row}" for row in range(190)]  # ten rows of padding
    words[5], words[6], words[7] = "twice", "twice", None
    spoiled = table.copy()
    spoiled[10], spoiled[11], spoiled[12] = 0, np.inf, np.nan
    joined = join([Table.of("a", spoiled, words), Table.of("b", table, words)])
    assert joined.count == 190 - 3 - 3 and joined.dropped == 3


def test_refusals() -> None:
    """Nothing in common, or no way to tell what is: refused in one sentence with what to do."""
    with pytest.raises(RefusedError, match="rows"):
        join([Table.of("a", gaussian(50)), Table.of("b", gaussian(60))])
    with pytest.raises(RefusedError, match="too few"):
        join([Table.of("a", gaussian(50), [f"a{i}" for i in range(50)]), Table.of("b", gaussian(50), list(range(50)))])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 400), st.integers(1, 12), st.integers(1, 4))
def test_blocks_do_not_show(seed: int, rows: int, width: int, pieces: int) -> None:
    """Streaming in pieces gives what whole matrices give, against a plain computation."""
    generator = np.random.default_rng(seed)
    a, b = (generator.normal(size=(rows, width)).astype(np.float32) + 2 for _ in "ab")
    joined = pair(a, b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieconv.analysis.token_tables.BLOCK", 4 * width * max(1, rows // pieces))
        found = linear(joined, 0, 1)
        sample = draw(rows, 50, generator)
        k = min(10, rows - 2)
        near = local(joined, 0, sample, k).neighbours
    centred = [m.astype(np.float64) - m.mean(axis=0, dtype=np.float64) for m in (a, b)]
    left, _, right = np.linalg.svd(centred[0].T @ centred[1])
    assert found.cosines["procrustes"] == pytest.approx(_cosine(centred[0] @ left @ right, centred[1]), abs=2e-4)
    fitted = centred[0] @ np.linalg.lstsq(*centred, rcond=None)[0]
    assert found.cosines["least squares"] == pytest.approx(_cosine(fitted, centred[1]), abs=2e-3)
    units = a / np.linalg.norm(a, axis=1, keepdims=True)
    scores = units[sample.queries].astype(np.float64) @ units.T
    scores[np.arange(len(sample.queries)), sample.queries] = -np.inf
    cut = np.sort(scores, axis=1)[:, -k]
    assert (np.take_along_axis(scores, near, 1) >= cut[:, None] - 1e-5).all()


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(((left * right).sum(1) / (np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1))).mean())


def test_ranks_share_ties() -> None:
    """Spearman of tied values is that of their mean ranks (values computed by hand)."""
    assert spearman(np.array([1, 2, 2, 3]), np.array([1, 2, 3, 4])) == pytest.approx(0.9486833)
    assert spearman(np.array([1, 1, 1]), np.array([1, 2, 3])) == 0


def test_memory_is_bounded() -> None:
    """No more rows than two blocks, or the pairs of tokens, are asked for at once, however long the table is."""
    asked = []
    table = gaussian(5000)

    def read(numbers: np.ndarray) -> np.ndarray:
        asked.append(len(numbers))
        return table[numbers]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieconv.analysis.token_tables.BLOCK", 4 * D * 256)
        tables = [Table(name, 5000, D, read) for name in "TEU"]
        align(tables[0], Untied(tables[1], tables[2]))
    assert set(asked) <= {1000, 512, 5000 % 512, 256, 5000 % 256}, set(asked)


def test_one_vote_is_no_disagreement() -> None:
    """A single measure that tells the roles apart is too little, and is not said to be contradicted."""
    none = Contest("knn", (0.1, 0.1, 0.1, None), (0.1, 0.1, 0.1, None))
    won = (0.1, 0.1, 0.01, None), (0.9, 0.1, 0.01, None)
    sentence = "The measures do not decide: the norm profile favours the head. The others favour neither role."
    assert verdict([none, none, Contest("norms", *won)]) == ("mixed", sentence)
    against = verdict([none, Contest("rsa", *won[::-1]), Contest("norms", *won)])
    assert against[0] == "mixed" and against[1].startswith("The measures do not agree on one role: ")


@pytest.fixture
def chance_of_plane() -> np.random.Generator:
    return np.random.default_rng(11)


def test_plane_finds_the_wide_directions(chance_of_plane: np.random.Generator) -> None:
    """Two planted directions come back as the axes, up to sign, whatever the mean; the sentence tells their share."""
    spots = np.linalg.qr(chance_of_plane.normal(size=(500, 2)))[0] * (50, 30)  # at right angles: then they are the axes
    basis = np.linalg.qr(chance_of_plane.normal(size=(16, 2)))[0].T
    section = plane(Table.of("t", (spots @ basis + 7).astype(np.float32)))
    for axis, name in enumerate(("plane_x", "plane_y")):
        assert abs(np.corrcoef(section.series[name], spots[:, axis])[0, 1]) > 0.99
    assert "100%" in section.sentence


@pytest.mark.parametrize("rows", [300, 6000])
def test_directions_used(rows: int, chance_of_plane: np.random.Generator) -> None:
    """A Gaussian table reaches the ceiling V/(V+d), a table of one direction the floor 1/d."""
    (measure,) = plane(Table.of("t", chance_of_plane.normal(size=(rows, 40)).astype(np.float32))).measures
    assert measure.value == pytest.approx(measure.ceiling, abs=0.02) and measure.ceiling == rows / (rows + 40)
    line = np.outer(chance_of_plane.normal(size=rows), np.ones(40)).astype(np.float32)
    (measure,) = plane(Table.of("t", line)).measures
    assert measure.value == pytest.approx(1 / 40, rel=1e-3) and measure.floor == 1 / 40


def test_colours_follow_their_rows(chance_of_plane: np.random.Generator) -> None:
    """A row of zeros drops out with its colour, and long tables are thinned to `POINTS`."""
    table = chance_of_plane.normal(size=(POINTS + 100, 4)).astype(np.float32)
    table[5] = 0
    series = plane(Table.of("t", table), {"number": np.arange(len(table))}).series
    colours = series["plane_colour number"]
    assert {len(points) for points in series.values()} == {POINTS} and 5 not in colours
    assert colours[0] == 0 and colours[-1] == pytest.approx(len(table) - 1, rel=1e-4)


def test_marked_rows_are_shown_first(chance_of_plane: np.random.Generator) -> None:
    """Of a long table every marked row is shown, up to half of the points, and no row twice."""
    rows = 5 * POINTS
    table = Table.of("t", chance_of_plane.normal(size=(rows, 4)).astype(np.float32))
    for marked, shown in ((10, 10), (rows, None)):
        first = np.zeros(rows, bool)
        first[chance_of_plane.permutation(rows)[:marked]] = True
        series = plane(table, {"place": np.arange(rows), "mark": first.astype(float)}, first=first).series
        assert len(set(series["plane_colour place"])) == len(series["plane_x"]) <= POINTS
        assert len(series["plane_x"]) >= POINTS - 1
        if shown is not None:
            assert sum(series["plane_colour mark"]) == shown


def test_too_few_rows() -> None:
    """Two rows make no plane."""
    assert plane(Table.of("t", np.ones((2, 4), np.float32))) is None


def test_what_float32_cannot_sum_is_not_drawn(chance_of_plane: np.random.Generator) -> None:
    """Rows so long that their products overflow have no map, and are no error."""
    assert plane(Table.of("t", (chance_of_plane.normal(size=(300, 16)) * 1e36).astype(np.float32))) is None


LONG, NARROW = 6000, 24
SEEDS, RARELY = 20, 17
"""Tables, and how many intervals of 95 % hold the value at least: fewer have a chance of 0.016."""


def like(seed: int = 0, rows: int = LONG, unlike: float = 0.8) -> list[Table]:
    """Two tables with rows of unlike length and few strong directions, alike in part or not at all."""
    rng = np.random.default_rng(seed)
    e = embedding(rng, rows, NARROW)
    shared, noise = e @ orthogonal(rng, NARROW), e.std() * embedding(rng, rows, NARROW)
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
    monkeypatch.setattr("tieconv.analysis.token_tables.BLOCK", 4 * NARROW * 700)
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
    shuffled = [tables[0], Table.of("U", np.random.default_rng(3).permutation(tables[1].read(np.arange(LONG))))]
    for name, figure in compare(shuffled, {"E→U": (0, 1)}).figures["E→U"].items():
        assert name in ("knn", "rsa", "norms") or abs(figure.value - figure.floor) < 4 * figure.error, name


def test_sums_are_those_of_float64() -> None:
    """Centred products of float32 blocks are off by less than 10⁻⁵, also with a large common vector."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((LONG, NARROW)).astype(np.float32) + 30 for _ in "ab")
    joined = join([Table.of("E", a), Table.of("U", b)])
    known = sums(joined, [(0, 1)])
    left, right = (m.astype(np.float64) - m.mean(axis=0, dtype=np.float64) for m in (a, b))
    scale = LONG
    for computed, exact in ((known.grams[0], left.T @ left), (known.grams[1], right.T @ right)):
        assert np.abs(computed - exact).max() < 1e-5 * scale
    assert np.abs(known.crosses[0, 1] - left.T @ right).max() < 1e-5 * scale


@pytest.mark.parametrize("ratio", [1.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 0.0])
def test_the_rotation_is_the_polar_factor(ratio: float) -> None:
    """It equals that of the singular value decomposition for any condition, and is orthogonal."""
    rng = np.random.default_rng(2)
    sizes = np.geomspace(1, ratio, NARROW) if ratio else np.append(np.ones(NARROW - 1), 0.0)
    left, right = orthogonal(rng, NARROW), orthogonal(rng, NARROW)
    cross = (left * sizes) @ right * 1e5
    turned = _rotation(cross).astype(np.float64)
    assert np.abs(turned.T @ turned - np.eye(NARROW)).max() < 1e-5
    assert np.trace(turned.T @ cross) == pytest.approx(sizes.sum() * 1e5, rel=1e-6)


BYTE_LEVEL = {0: "Ġthe", 1: "the", 2: "Ċ", 3: "<|endoftext|>", 4: "Ã©", 6: "Ġa"}
SENTENCEPIECE = {0: "<0x0A>", 1: "▁the", 2: "é", 3: "</s>", 4: "the", 5: "▁a"}


def test_spellings_meet() -> None:
    """`Ġthe` and `▁the` write the same, and so do `Ċ` and `<0x0A>`, `Ã©` and `é`."""
    left, right = token_bytes(BYTE_LEVEL, 8), token_bytes(SENTENCEPIECE, 6)
    assert set(left) & set(right) == {b" the", b"the", b"\n", "é".encode(), b" a"}


def test_rows_without_a_token() -> None:
    """A gap and the padding behind the vocabulary have no token, and ids beyond the table no row."""
    found = token_bytes({**BYTE_LEVEL, 99: "beyond"}, 8)
    assert len(found) == 8 and found[5] is None and found[7] is None


def test_byte_level_against_the_real_tokenizer() -> None:
    """Every letter of the byte alphabet comes back as the byte that the tokenizers library writes it for."""
    from tokenizers.pre_tokenizers import ByteLevel

    for letter in ByteLevel.alphabet():
        (found,) = token_bytes({0: f"Ġ{letter}"}, 1)
        assert found is not None and found[:1] == b" " and len(found) == 2
    accents = "naïve Ω 漢字 🙂"
    ((spelled, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(accents)
    assert token_bytes({0: spelled}, 1) == [accents.encode()]


def test_hostile_strings() -> None:
    """A lone surrogate is a token like another."""
    assert token_bytes({0: "\ud800"}, 1) == ["\ud800".encode("utf-8", "surrogatepass")]


MEASURES = ("identity", "procrustes", "least squares", "cka", "knn", "rsa", "norms")
OWN_ROWS, OWN_WIDTH = 900, 24


def untied(folder: Path, head: Array, embed: Array | None = None, words: int | None = None) -> Path:
    """Write an untied Llama of two tables and its last norm, with a vocabulary of ``words`` if it is given."""
    embed = np.random.default_rng(0).standard_normal(head.shape) if embed is None else embed
    tables = {"model.embed_tokens.weight": embed, "lm_head.weight": head, "model.norm.weight": np.ones(head.shape[1])}
    save_file({name: t.astype("f4") for name, t in tables.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    if words is not None:
        (folder / "vocab.json").write_text(json.dumps({f"w{row}": row for row in range(words)}))
    return folder


def measured(model: Path, **options: object) -> dict[str, Measure]:
    section = analyze(model, **options).section("Similarity")  # type: ignore[arg-type]
    return {} if section is None else {measure.name: measure for measure in section.measures}


def test_unrelated_tables_are_at_every_floor(tmp_path: Path) -> None:
    """Each measure is there with its permutation floor, and the sentence claims no likeness."""
    found = measured(untied(tmp_path, np.random.default_rng(1).standard_normal((OWN_ROWS, OWN_WIDTH))))
    assert list(found) == [f"{name} E→U" for name in MEASURES]
    for name, measure in found.items():
        assert measure.value is not None and measure.floor is not None
        assert measure.value == pytest.approx(measure.floor, abs=0.12 if "norms" in name else 0.03), name
    assert found["procrustes E→U"].floor == pytest.approx(8 / (3 * np.pi) * np.sqrt(OWN_WIDTH / OWN_ROWS), rel=0.1)
    section = analyze(tmp_path).section("Similarity")
    assert section is not None and section.sentence.startswith("The two tables agree no more than chance.")


def test_a_rotated_copy_is_recognised(tmp_path: Path) -> None:
    """A rotation with little noise keeps all but the identity cosine, and the sentence names what agrees."""
    rng = np.random.default_rng(2)
    e = embedding(rng, OWN_ROWS, OWN_WIDTH)
    model = untied(tmp_path, (e + 0.02 * e.std() * rng.standard_normal(e.shape)) @ orthogonal(rng, OWN_WIDTH), e)
    found = measured(model)
    for name in MEASURES[1:]:
        assert found[f"{name} E→U"].value > 0.7 > found[f"{name} E→U"].floor, name  # type: ignore[operator]
    section = analyze(model).section("Similarity")
    assert section is not None
    for words in ("best rotation", "best linear map", "CKA", "nearest tokens", "RSA", "row lengths"):
        assert words in section.sentence


def test_rows_without_a_token_do_not_count(tmp_path: Path) -> None:
    """Padding rows that are equal in both tables do not make them alike."""
    rng = np.random.default_rng(3)
    e, u = rng.standard_normal((2, OWN_ROWS, OWN_WIDTH))
    u[600:] = e[600:] + 0.01 * rng.standard_normal((OWN_ROWS - 600, OWN_WIDTH))
    found = measured(untied(tmp_path, u, e, words=600))
    assert found["norms E→U"].n == 600
    assert found["knn E→U"].value < 0.1  # type: ignore[operator]


def test_when_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for tables that the relation explains, nor for long ones, unless asked for; never for one table."""
    rng = np.random.default_rng(4)
    e, u = rng.standard_normal((2, OWN_ROWS, OWN_WIDTH))
    (tmp_path / "scaled").mkdir()
    scaled, apart = untied(tmp_path / "scaled", 2 * e, e), untied(tmp_path, u, e)
    assert not measured(scaled) and measured(scaled, similarity=True)
    assert measured(apart) and not measured(apart, similarity=False)
    monkeypatch.setattr(own_tables, "WORK", OWN_ROWS * OWN_WIDTH**2 - 1)
    assert not measured(apart) and measured(apart, similarity=True)
    tied = Path(__file__).parents[2] / "fixtures" / "models" / "llama-tied"
    assert not measured(tied, similarity=True)


def printed(model: str, options: str = "") -> dict[str, dict[str, Any]]:
    """The figures of the relation and the similarity, by name."""
    sections = json.loads(ok(f"analyze --json {options}", model).stdout)["sections"]
    named = (section for section in sections if section["title"] in ("Relation", "Similarity"))
    return {measure["name"]: measure for section in named for measure in section["measures"]}


def test_exact_figures_are_those_of_numpy(tmp_path: Path) -> None:
    """--exact measures all tokens, also of a long table; --sampled does not, and says so with an interval."""
    rng = np.random.default_rng(5)
    e = rng.standard_normal((1500, 16)) * np.exp(rng.normal(0, 0.3, (1500, 1)))
    e, u = (part.astype("f4").astype("f8") for part in (e, e + 0.5 * rng.standard_normal(e.shape) + 1))
    model = str(untied(tmp_path, u, e))
    a, b = e - e.mean(0), u - u.mean(0)
    left, _, right = np.linalg.svd(a.T @ b)
    fitted = a @ np.linalg.lstsq(a, b, rcond=None)[0]
    r2 = 1 - np.square(b - fitted).sum() / np.square(b).sum()
    near = [np.argsort(-cosine(part, part[:, None]), axis=1)[:, 1:11] for part in (e, u)]
    expected = {
        "R²": r2,
        "adjusted R²": 1 - (1 - r2) * 1499 / 1483,
        "identity E→U": cosine(a, b).mean(),
        "procrustes E→U": cosine(a @ left @ right, b).mean(),
        "least squares E→U": cosine(fitted, b).mean(),
        "cka E→U": np.square(a.T @ b).sum() / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b),
        "knn E→U": np.mean([len(set(x) & set(y)) / 10 for x, y in zip(*near, strict=True)]),
        "norms E→U": np.corrcoef(np.linalg.norm(e, axis=1), np.linalg.norm(u, axis=1))[0, 1],
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (alignment_measures, relation_maps):
            patch.setattr(module, "EXACT", 1000)
        exact, default = printed(model, "--exact"), printed(model)
    assert {name: exact[name]["value"] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert all(exact[name]["n"] == 1500 and "interval" not in exact[name]["says"] for name in expected)
    assert {name: default[name] for name in expected} == {name: printed(model, "--sampled")[name] for name in expected}
    sampled = {name for name in expected if "95 % interval" in default[name]["says"]}
    assert sampled == set(expected) - {"R²", "norms E→U"}
    assert "Similarity" not in ok("analyze --no-similarity", model).stdout


def cosine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
