"""`docs/reproduce.py` on stand-ins: it runs, measures what it was built to have, and the page quotes its rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tieconv import analyze

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduce.md"


def printed(*words: str) -> list[list[str]]:
    """The cells of each line of the table."""
    command, environment = [sys.executable, str(ROOT / "docs" / "reproduce.py"), *words], {"PYTHONPATH": str(ROOT)}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return cells(done.stdout)


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    models = tmp_path_factory.mktemp("reproduce") / "models"
    return models, printed("--stand-ins", str(models), "--row", "OLMo", "--row", "Qwen3")


def test_the_effect_of_the_stand_ins_is_found(table: tuple[Path, list[list[str]]]) -> None:
    """U→T is above chance and near its ceiling, E→T and E→U are at chance, in each measure with a shared part."""
    rows = {(row[0], row[1], row[2]): row[3:6] for row in table[1][1:]}
    assert len(rows) == 2 * 4 * 3
    for name in ("procrustes", "least squares", "knn"):
        value, floor, ceiling = map(float, rows["OLMo", name, "U→T"])
        assert value > 2.5 * floor and value == pytest.approx(ceiling, rel=0.1)
        for pair in ("E→T", "E→U"):
            value, floor = map(float, rows["OLMo", name, pair][:2])
            assert value == pytest.approx(floor, abs=0.01)
    assert rows["Qwen3", "procrustes", "U→T"][:2] == ["", ""]  # the widths differ
    assert float(rows["Qwen3", "least squares", "U→T"][0]) > 0.4


def test_the_figures_are_those_of_analyze(table: tuple[Path, list[list[str]]]) -> None:
    models, lines = table
    section = analyze(models / "allenai/OLMo-1B-hf", against=models / "allenai/OLMo-1B-0724-hf").section("Alignment")
    assert section is not None
    measures = {measure.name: measure for measure in section.measures}
    for row, name, pair, value, floor, _, n, _ in lines[1:]:
        if row == "OLMo":
            measure = measures[f"{name} {pair}"]
            assert (value, floor, n) == (f"{measure.value:.3f}", f"{measure.floor:.3f}", f"{measure.n:,}")


def test_the_page_quotes_the_table(table: tuple[Path, list[list[str]]]) -> None:
    """The same lines with the same values of the paper, and figures that agree to the digits that BLAS leaves open."""
    quoted = [row for row in cells(PAGE.read_text("utf-8")) if row[0] == "OLMo"]
    made = [row for row in table[1] if row[0] == "OLMo"]
    assert [row[:3] + row[6:] for row in quoted] == [row[:3] + row[6:] for row in made]
    for ours, theirs in zip(quoted, made, strict=True):
        assert [float(cell or 0) for cell in ours[3:6]] == pytest.approx(
            [float(cell or 0) for cell in theirs[3:6]], abs=0.002
        )


def test_models_in_a_directory(table: tuple[Path, list[list[str]]]) -> None:
    """``--models`` reads the same models, without ceilings; ``--second`` gives them."""
    models, lines = table
    words = ["--models", str(models), "--row", "OLMo"]
    assert [row[:5] for row in printed(*words)[1:]] == [row[:5] for row in lines[1:] if row[0] == "OLMo"]
    second = f"OLMo={models / 'allenai/OLMo-1B-0724-hf-second'}"
    assert printed(*words, "--second", second)[1:] == [row for row in lines if row[0] == "OLMo"]
