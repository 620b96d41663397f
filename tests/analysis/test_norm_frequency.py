"""`analyze --counts`: row norms against token frequency."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.test_evolution import ROWS, checkpoint, noise
from tests.cli.run import ok, refused
from tieconv import SettingsError, analyze
from tieconv.analysis.rows_section import _frequency_sentence, read_counts
from tieconv.checkpoint.results.analysis import Section


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An untied model: the norms of E grow with the frequency, those of U fall, both with noise."""
    counts = zipf()
    chance = np.random.default_rng(5)
    scale = np.log(counts)[:, None] / 10 + 0.3 * chance.random((ROWS, 1))
    checkpoint(tmp_path / "model", noise(0) * (1 + scale), noise(1) * (2 - scale))
    lines = [f"{row},{int(count)}" for row, count in enumerate(counts) if row >= 50]
    (tmp_path / "counts.csv").write_text("\n".join(["id,count", *lines]) + "\n")
    return tmp_path / "model"


def zipf() -> np.ndarray:
    return np.floor(1e5 / np.random.default_rng(4).permutation(np.arange(1, ROWS + 1)))


def found(model: Path) -> Section:
    section = analyze(model, counts=model.parent / "counts.csv").section("Frequency")
    assert section is not None
    return section


def test_correlations_are_those_of_numpy(model: Path) -> None:
    """Spearman and Pearson of the tokens that occur, recomputed from the stored values."""
    from safetensors.numpy import load_file

    stored, counts = load_file(model / "model.safetensors"), zipf()[50:]
    measures = {measure.name: measure for measure in found(model).measures}
    for table, name in (("input embedding", "model.embed_tokens.weight"), ("output head", "lm_head.weight")):
        norms = np.linalg.norm(stored[name].astype("f8"), axis=1)[50:]
        assert measures[f"Pearson of log p, norm of the {table}"].value == pytest.approx(
            np.corrcoef(norms, np.log(counts))[0, 1], abs=1e-6
        )
        ranks = [np.array([(values < value).sum() + (values == value).sum() / 2 for value in values])
                 for values in (norms, counts)]  # fmt: skip
        spearman = measures[f"Spearman, norm of the {table}"]
        assert spearman.value == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-6)
        assert spearman.n == ROWS - 50 and spearman.floor is not None and abs(spearman.floor) < 0.2
    assert "longer rows in the input embedding" in found(model).sentence
    assert "shorter rows in the output head" in found(model).sentence


def test_intervals_cover_the_truth(tmp_path: Path) -> None:
    """Of 400 samples of correlated normal numbers, 95 % intervals hold the true Pearson correlation about as often."""
    from tieconv.analysis.alignment_measures import pearson
    from tieconv.analysis.rows_section import _interval

    inside = 0
    for seed in range(400):
        left, right = np.random.default_rng(seed).standard_normal((2, 150))
        low, high = _interval(pearson(left, 0.6 * left + 0.8 * right), 1 / np.sqrt(147))
        inside += low < 0.6 < high
    assert 365 <= inside <= 395


def test_detail_and_series(model: Path) -> None:
    """The JSON has the intervals and the points of the plot; a tied model has one table."""
    counts = model.parent / "counts.csv"
    document = json.loads(ok("analyze --json --counts", counts, model).stdout)
    (section,) = [entry for entry in document["sections"] if entry["title"] == "Frequency"]
    assert section["detail"]["tokens"] == ROWS - 50 and section["detail"]["occurrences"] == int(zipf()[50:].sum())
    for measure in section["measures"]:
        low, high = section["detail"]["interval"][measure["name"]]
        assert low < measure["value"] < high and f"{low:.3f} to {high:.3f}" in measure["says"]
    assert {len(points) for points in section["series"].values()} == {ROWS - 50}
    checkpoint(model.parent / "tied", noise(0))
    tied = analyze(model.parent / "tied", counts=counts).section("Frequency")
    assert tied is not None and [measure.name for measure in tied.measures] == [
        "Spearman, norm of the tied table",
        "Pearson of log p, norm of the tied table",
    ]
    ok(f"analyze --counts {counts} --html {model.parent / 'p.html'}", model)
    assert "norm of the output head against word frequency" in (model.parent / "p.html").read_text("utf-8")


def test_few_tokens_have_no_correlation(model: Path) -> None:
    (model.parent / "counts.csv").write_text("".join(f"{row}\t{row}\n" for row in range(1, 60)))
    assert found(model).measures == () and "needs 100" in found(model).sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\nx\n", "line 2 is not a token id and a count"),
        ("0 1e400\n1 2\n", "line 1 is not"),
        ("-1,2\n1,2\n", "line 1 is not"),
        ("1,2\n-3,4\n", "line 2 is not"),
        ("1,2\n1,3\n", "line 2 repeats the id 1"),
        ("1,2\n400,3\n", "line 2 has the id 400, but the table has 400 rows"),
        ("id,count\n1,2.5\n", "line 2 is not"),
    ],
)
def test_other_files_are_refused(text: str, says: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_counts(str(tmp_path / "c.csv"), ROWS)
    assert "does not hold counts" in refused("analyze --counts", tmp_path / "c.csv", model)


@pytest.mark.parametrize("text", ["3,7\n5,9", "3\t7\r\n5\t9\r\n", "token count\n3 7\n\n5 9\n", "3, 7\n5 , 9\n"])
def test_separators(text: str, tmp_path: Path) -> None:
    """A comma, a tab or a space; a header and empty lines are skipped."""
    (tmp_path / "c.txt").write_bytes(text.encode())
    counts = read_counts(str(tmp_path / "c.txt"), 6)
    assert counts.tolist() == [0, 0, 0, 7, 0, 9]


@pytest.mark.parametrize(
    ("interval", "which"),
    [([0.1, 0.2], "longer"), ([0, 0.2], "neither longer nor shorter"), ([-0.2, 0], "neither longer nor shorter"),
     ([-0.2, -0.1], "shorter")],
)  # fmt: skip
def test_the_sentence_follows_the_interval(interval: list[float], which: str) -> None:
    name = "Spearman, norm of the head"
    sentence = _frequency_sentence({"head": np.zeros(1)}, {name: 0.15}, {name: interval})
    assert sentence == f"Frequent tokens have {which} rows in the head (rank correlation 0.15)."
