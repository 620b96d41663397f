"""What makes the relation fast does not change its answer, and memory does not grow with the tables."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.analysis.constructed import Array, embedding, orthogonal, table
from tieconv.analysis import (
    relation as classify,
    relation_maps as fits,
    relation_maps as grams,
    relation_maps as linear_map,
    relation_maps as structured_difference,
    tables as equal_rows,
)
from tieconv.analysis.relation import CLOSE, relate_tables
from tieconv.analysis.relation_maps import fit_linear
from tieconv.analysis.relation_section import share_interval
from tieconv.analysis.tables import Moments, Table, measure
from tieconv.checkpoint.results.analysis import Kinship


def pair(seed: int, rows: int = 700, width: int = 24, dtype: str = "F32") -> tuple[Table, Table, Moments]:
    """Two unrelated tables and their moments."""
    rng = np.random.default_rng(seed)
    embed, head = (table(embedding(rng, rows, width), dtype) for _ in range(2))
    return embed, head, measure(embed, head)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["F32", "BF16", "F16"]), st.integers(40, 900))
def test_the_error_of_float32_sums_is_bounded(seed: int, dtype: str, rows: int) -> None:
    """Every entry of both matrices is within γ of the sum of magnitudes, of what float64 gives."""
    embed, head, moments = pair(seed, rows, 12, dtype)
    single, double = (grams.gram(embed, head, moments, single=single) for single in (True, False))
    assert single.error > 1e4 * double.error
    e, u = (t.values(0, rows) - mean for t, mean in zip((embed, head), moments.means, strict=True))
    # The mean is rounded to float32 as well: it is off by 2⁻²⁴ of itself at most.
    a, b = (
        np.abs(part) + 2.0**-24 * np.abs(mean) / single.error for part, mean in zip((e, u), moments.means, strict=True)
    )
    assert (np.abs(single.ee - double.ee) <= single.error * (a.T @ a)).all()
    assert (np.abs(single.eu - double.eu) <= single.error * (a.T @ b)).all()
    assert single.whole == pytest.approx(double.whole, rel=1e-4)


def test_blocks_bound_the_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of one block: float64 adds the blocks, so a longer table has the same."""
    monkeypatch.setattr(grams, "GEMM", 64 * 24)
    for rows in (200, 800):
        assert grams.gram(*pair(1, rows), single=True).error == pytest.approx(20 * 2.0**-24, rel=1e-4)


def test_float64_decides_where_float32_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unrelated float32 tables need no float64 sums. A map, or a direction that float32 cannot see, gets them."""
    asked: list[bool] = []
    real = grams.gram

    def counted(*args: object, single: bool) -> grams.Grams:
        asked.append(single)
        return real(*args, single=single)  # type: ignore[arg-type]

    monkeypatch.setattr(linear_map, "gram", counted)
    rng = np.random.default_rng(5)
    e = rng.standard_normal((900, 16))
    assert relate_tables(table(e, "F32"), table(rng.standard_normal((900, 16)), "F32")).kind is Kinship.INDEPENDENT
    assert asked == [True]
    flat = e * np.where(np.arange(16) == 3, 1e-6, 1.0)  # the head is made of the one faint direction
    related = relate_tables(
        table(flat, "F32"), table(flat @ np.diag(1e6 ** (np.arange(16) == 3)) @ rng.random((16, 16)), "F32")
    )
    assert related.kind is Kinship.LINEAR and asked[1:] == [True, False]


def test_float32_does_not_claim_what_it_cannot_know() -> None:
    """The bound of R grows as the smallest eigenvalue shrinks, and beyond half of it nothing is sure."""
    embed, head, moments = pair(3)
    rows = embed.pick(np.arange(50)), head.pick(np.arange(50))
    fitted = fit_linear(grams.gram(embed, head, moments, single=True), rows)
    assert fitted is not None and fitted.surely_below(CLOSE) and not fitted.surely_below(fitted.linear.adjusted)
    assert not type(fitted)(fitted.linear, None, fitted.grams, 0.0).surely_below(CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("unlike", [0.6, 2.0, np.inf])
def test_a_sample_decides_where_no_map_is_close(unlike: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is that of all rows, and the interval of the adjusted R² holds it in 17 of 20 tables at least."""
    monkeypatch.setattr(grams, "EXACT", 2000)
    monkeypatch.setattr(grams, "FEWEST", 600)
    inside = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        e, noise = embedding(rng, 3000, 12), embedding(rng, 3000, 12)
        scale = np.linalg.norm(e - e.mean(0)) / np.linalg.norm(noise - noise.mean(0))
        u = noise if np.isinf(unlike) else e @ orthogonal(rng, 12) + unlike * scale * noise
        tables = table(e, "F32"), table(u, "F32")
        sampled, exact = relate_tables(*tables), relate_tables(*tables, exact=True)
        assert sampled.linear is not None and exact.linear is not None and exact.linear.interval is None
        assert sampled.kind is exact.kind and sampled.linear.rows < 1000 < exact.linear.rows == 3000
        assert sampled.linear.interval is not None
        inside += sampled.linear.interval[0] <= exact.linear.adjusted <= sampled.linear.interval[1]
    assert inside >= 17


def test_all_rows_decide_where_a_sample_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map within rounding, or one that explains nearly nine tenths, is fitted on all rows of a long table."""
    monkeypatch.setattr(grams, "EXACT", 2000)
    rng = np.random.default_rng(5)
    e = rng.standard_normal((3000, 12))
    mapped = e @ rng.standard_normal((12, 12))
    for noise in (0.0, 0.34, 1e4):
        u = mapped + noise * mapped.std() * rng.standard_normal(e.shape) + 1e3 * (noise > 1)
        linear = relate_tables(table(e, "F32"), table(u, "F32")).linear
        assert linear is not None and (linear.rows == 3000) is (noise < 1)


@pytest.mark.parametrize("count", [48, 256])
def test_the_interval_of_a_share(count: int) -> None:
    """It holds the share in 94 of 100 samples on average, whatever the share is, and stays between 0 and 1."""
    intervals = np.array([share_interval(hits / count, count) for hits in range(count + 1)])
    assert (
        intervals.min() >= 0 and intervals.max() <= 1 and share_interval(0, 256)[1] == pytest.approx(0.0148, abs=1e-4)
    )
    shares = np.linspace(0.01, 0.99, 99)
    ways = np.cumprod([1.0, *((count - hits) / (hits + 1) for hits in range(count))])
    chances = [ways * share ** np.arange(count + 1) * (1 - share) ** np.arange(count, -1, -1) for share in shares]
    held = [
        chance[(low <= share) & (share <= high)].sum()
        for share, chance, (low, high) in zip(shares, chances, [intervals.T] * 99, strict=True)
    ]
    assert np.mean(held) > 0.94 and min(held) > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.1, 10.0])
def test_held_out_rows_are_predicted_without_them(noise: float) -> None:
    """The leverage formula gives what a second fit without the rows gives."""
    rng = np.random.default_rng(6)
    e = embedding(rng, 500, 20)
    u = e @ rng.standard_normal((20, 20)) + noise * e.std() * rng.standard_normal((500, 20))
    embed, head = table(e, "F64"), table(u, "F64")
    moments, held = measure(embed, head), np.arange(0, 500, 7)
    fitted = fit_linear(grams.gram(embed, head, moments, single=False), (e[held], u[held]))
    rest = np.setdiff1d(np.arange(500), held)
    a, b = (part - mean for part, mean in zip((e, u), moments.means, strict=True))
    expected = a[held] @ np.linalg.lstsq(a[rest], b[rest], rcond=None)[0] + moments.means[1]
    assert fitted is not None and fitted.held_out == pytest.approx(expected, rel=1e-6, abs=1e-8 * np.abs(u).max())


def test_a_direction_of_the_held_out_rows_alone_is_not_predicted() -> None:
    """What no remaining row shows is predicted as the mean, not as a quotient of two roundings."""
    rng = np.random.default_rng(7)
    e = rng.standard_normal((300, 8))
    e[:, 0] = 0
    e[4:6, 0] = 50.0, -50.0
    u = e @ rng.standard_normal((8, 8))
    embed, head = table(e, "F64"), table(u, "F64")
    moments, held = measure(embed, head), np.array([4, 5])
    fitted = fit_linear(grams.gram(embed, head, moments, single=False), (e[held], u[held]))
    assert fitted is not None and fitted.held_out is not None
    assert np.linalg.norm(fitted.held_out - u[held]) > 0.5 * np.linalg.norm(u[held])


def test_residuals_from_moments_are_those_of_differences() -> None:
    """A residual of the moments equals the one from differences to 10⁻⁵, and a small one is measured."""
    rng = np.random.default_rng(8)
    e = embedding(rng, 400, 16)
    for noise, measured in ((1.0, 0), (1e-9, 1)):
        embed, head = table(e, "F64"), table(e + noise * e.std() * rng.standard_normal(e.shape), "F64")
        moments = measure(embed, head)
        maps = [(gains, shift) for _, gains, shift in fits._candidates(moments)]
        known = [fits._expanded(moments, *map_) for map_ in maps]
        exact = fits._residuals(embed, head, moments.finite, maps)
        assert known.count(None) == 6 * measured
        assert all(
            square is None or square == pytest.approx(true, rel=1e-5) for square, true in zip(known, exact, strict=True)
        )


def test_early_ends_read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unrelated tables end both searches for structure after the first block, and without a digest."""
    embed, head, moments = pair(9, rows=4000)
    read: list[int] = []
    real = Table.bits

    def counted(self: Table, start: int, stop: int) -> Array:
        read.append(stop - start)
        return real(self, start, stop)

    monkeypatch.setattr(structured_difference, "spans", lambda rows, width: ((i, i + 10) for i in range(0, rows, 10)))
    monkeypatch.setattr(Table, "bits", counted)
    assert structured_difference.row_factors(embed, head, moments, ("F32", "F32")) is None
    assert sum(read) == 20
    read.clear()
    assert structured_difference.difference_rank(embed, head, moments, ("F32", "F32")) is None
    assert sum(read) <= 6 * structured_difference._PROBED  # every third row, and those between
    read.clear()
    assert classify._moved_rows(embed, head, moments, 0) is None and not read


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_lengths_bound_the_overlap(seed: int, width: int) -> None:
    """Rows that are equal have one length, however it was summed, so no equal row is left out."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, (60, width)).astype(float)  # many equal rows
    values[3], values[9, 0] = 0, np.nan
    stored, turned = table(values, "F32"), table(values[::-1].copy(), "F32")
    with np.errstate(invalid="ignore"):
        norms = np.sqrt(np.cumsum(values**2, axis=1)[:, -1])  # a different order of summation
    alike = equal_rows.twins(norms, width)
    found = equal_rows.duplicates(equal_rows.digests(stored, alike), alike)
    every = equal_rows.duplicates(equal_rows.digests(stored))
    assert found == [group for group in every if values[group[0]].any()]
    shared = equal_rows.overlap(equal_rows.digests(stored), equal_rows.digests(turned))
    assert equal_rows.most_overlap(norms, norms[::-1], width) >= shared == 60


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["F32", "BF16", "F64"]), st.sampled_from([0.0, 1.0, 30.0]))
def test_queries_that_end_early_are_misses(seed: int, dtype: str, common: float) -> None:
    """P@1 is that of a search through all rows, with rows that occur twice, and for any share of hits."""
    rng = np.random.default_rng(seed)
    e = rng.standard_normal((600, 16)) + common
    u = e + rng.uniform(0, 1.5) * rng.standard_normal(e.shape)
    u[rng.integers(0, 600, 60)] = u[rng.integers(0, 600, 60)]
    embed, head = table(e, dtype), table(u, dtype)
    moments = measure(embed, head)
    asked = fits.sample(moments)
    mapped = {"as stored": embed.pick(asked) + moments.means[1] - moments.means[0]}
    units = [
        part / np.linalg.norm(part, axis=1)[:, None]
        for part in (mapped["as stored"] - moments.means[1], head.values(0, 600) - moments.means[1])
    ]
    scores = units[0] @ units[1].T
    expected = float((np.argmax(scores > scores.max(axis=1)[:, None] - 1e-12, axis=1) == asked).mean())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "GEMM", 16 * 40)
        assert fits.precision_at_1(head, moments, asked, mapped)["as stored"] == pytest.approx(
            expected, abs=1.5 / len(asked)
        )


ROWS, WIDTH = 128_256, 512
PEAK = 170


NAMES = ("model.embed_tokens.weight", "lm_head.weight")


def write(folder: Path, head: float, last: float | None = None, rows: int = ROWS) -> None:
    """Two tables and a norm of ones: 64 rows of the embedding are 1.5, of the head ``head`` and one ``last``."""
    size = rows * WIDTH * 2
    header: dict[str, object] = {
        name: {"dtype": "BF16", "shape": [rows, WIDTH], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(NAMES)
    }
    ends = [2 * size, 2 * size + 2 * WIDTH]
    header["model.norm.weight"] = {"dtype": "BF16", "shape": [WIDTH], "data_offsets": ends}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + ends[1])  # zeros that take no disk
        last = head if last is None else last
        for place, value, count in ((0, 1.5, 64), (size, head, 63), (size + 126 * WIDTH, last, 1), (2 * size, 1.0, 1)):
            file.seek(8 + len(text) + place)
            file.write(struct.pack("<f", value)[2:] * WIDTH * count)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))


def peak(code: str) -> tuple[str, float]:
    """What a program of its own prints, and the most memory that it had, in MiB."""
    code += "\nprint([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *told, size = answer.stdout.split()
    return " ".join(told), int(size) / 1024


@pytest.mark.slow
def test_a_quarter_of_the_tables_takes_as_little(tmp_path: Path) -> None:
    """Two tables of 31 MiB each, which would be 250 MiB as float64."""
    write(tmp_path, head=0.0, rows=ROWS // 4)
    relation, used = peak(f"import tieconv; print(tieconv.analyze({str(tmp_path)!r}).relation)")
    assert relation == "k-rows-differ" and used < PEAK


@pytest.mark.slow
def test_tables_larger_than_the_memory_that_is_used(tmp_path: Path) -> None:
    """Two tables of 125 MiB each, which would be 1,000 MiB as float64, are analysed in less than 170 MiB."""
    write(tmp_path, head=0.0)
    relation, used = peak(f"import tieconv; print(tieconv.analyze({str(tmp_path)!r}).relation)")
    assert relation == "k-rows-differ" and used < PEAK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "last", "most"), [("survivor='mean', force=True", -1.0, 80), ("fold_norm=True", 3.0, PEAK)]
)
def test_tables_are_averaged_and_unfolded_a_block_at_a_time(
    tmp_path: Path, options: str, last: float, most: int
) -> None:
    """So are they written: the mean in less than 80 MiB, the proof of a fold in less than 170."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write(source, 3.0, last)
    program = f"import tieconv\nplan = tieconv.plan_retie({str(source)!r}, {options})\n"
    program += f"print(plan.execute({str(out)!r}).verified)"
    told, used = peak(program)
    assert told == "True" and used < most
    assert (out / "model.safetensors").stat().st_size < 1.01 * ROWS * WIDTH * 2
