"""Alignment on matrices whose answers are known."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieconv.analysis.alignment import Contest, Untied, align, verdict
from tieconv.analysis.alignment_measures import draw, expected, linear, local, overlap, pearson, spearman
from tieconv.analysis.token_tables import Table, join
from tieconv.checkpoint.results.analysis import Section
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
    none, won = (
        Contest("knn", (0.1, 0.1, 0.1, None), (0.1, 0.1, 0.1, None)),
        ((0.1, 0.1, 0.01, None), (0.9, 0.1, 0.01, None)),
    )
    told = verdict([none, none, Contest("norms", *won)])
    assert told == (
        "mixed",
        "The measures do not decide: the norm profile favours the head. The others favour neither role.",
    )
    against = verdict([none, Contest("rsa", *won[::-1]), Contest("norms", *won)])
    assert against[0] == "mixed" and against[1].startswith("The measures do not agree on one role: ")
