"""`analyze --revisions`: what it prints and writes."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.test_evolution import checkpoint, noise
from tests.cli.run import ok, refused, run
from tests.reporters.reports import BAITS
from tests.reporters.test_analyze_html import harmless
from tests.schemas import validate
from tieconv.checkpoint.results.analysis import Evolution, Headline, Measure, RevisionFigures
from tieconv.install import install_command
from tieconv.reporters import figure_table as evolution_table
from tieconv.reporters.figure_table import comma_separated
from tieconv.reporters.html.analyze_page import render_evolution as page
from tieconv.reporters.text.analyze_text import render_evolution as text


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    for number in range(3):
        turn = 0.2 * number
        checkpoint(tmp_path / "run" / f"step{number}", noise(0), np.cos(turn) * noise(2) + np.sin(turn) * noise(3))
    return tmp_path / "run"


NAMES = "--revisions step0,step1,step2"


def test_json_has_its_schema(steps: Path) -> None:
    document = json.loads(ok(f"analyze {NAMES} --json", steps).stdout)
    validate(document, "evolution")
    assert document["headline"]["answer"].endswith("The head moved further.")
    assert [len(entry["measures"]) for entry in document["revisions"]] == [9, 13, 13]


def test_text_has_a_line_for_each_revision(steps: Path) -> None:
    """The answer first, then both tables, each with the floors at the end; no line is wider than 100 columns."""
    printed = ok(f"analyze {NAMES}", steps).stdout
    first, *lines = printed.splitlines()
    assert "How do the tables of" in first and "How sure: measured on 400 rows" in first
    assert sum(line.startswith("  step1 ") for line in lines) == 2
    assert sum(line.startswith("  floor, last revision ") for line in lines) == 2
    assert max(map(len, lines)) <= 100


def test_tables_have_every_figure(steps: Path, tmp_path: Path) -> None:
    """CSV and Parquet have the figures of the JSON with every digit."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    options = f"{NAMES} --json --csv {tmp_path / 't.csv'} --parquet {tmp_path / 't.parquet'}"
    document = json.loads(ok(f"analyze {options}", steps).stdout)
    figures = [(entry, measure) for entry in document["revisions"] for measure in entry["measures"]]
    header, *lines = csv.reader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert header == list(evolution_table.EVOLUTION_COLUMNS) == list(rows[0])
    assert len(figures) == len(lines) == len(rows) == 35
    for (entry, measure), line, row in zip(figures, lines, rows, strict=True):
        assert line[1:3] == [entry["name"], str(entry["step"])] and line[4] == measure["name"] == row["figure"]
        for column, key in ((5, "value"), (6, "floor"), (8, "standard_error")):
            assert (float(line[column]) if line[column] else None) == measure[key] == row[key]


def test_parquet_of_one_model(tmp_path: Path) -> None:
    """`analyze --parquet` has the figures of `--csv`."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    model = Path(__file__).parents[2] / "fixtures" / "models" / "llama-untied"
    ok(f"analyze --csv {tmp_path / 't.csv'} --parquet {tmp_path / 't.parquet'}", model)
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    lines = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(lines) > 20
    for row, line in zip(rows, lines, strict=True):
        assert {name: "" if cell is None else str(cell) for name, cell in row.items()} == line


def test_parquet_is_an_extra(steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow: one sentence before anything is measured."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(f"analyze {NAMES} --parquet t.parquet", steps)
    assert result.exit_code == 2 and install_command("parquet") in result.stderr


def test_page(steps: Path, tmp_path: Path) -> None:
    """A plot for each measure, each floor dashed, and every figure of every revision."""
    ok(f"analyze {NAMES} --html {tmp_path / 'p.html'}", steps)
    drawn = (tmp_path / "p.html").read_text(encoding="utf-8")
    harmless(drawn)
    assert drawn.count("<figure>") == 10 and drawn.count("<details") == 3
    assert drawn.count(' chance"/>') + drawn.count(' chance" d=') == 2 * 2 + 7
    assert "prefers-color-scheme:dark" in drawn and "training step" in drawn


@pytest.mark.parametrize("bait", BAITS)
def test_hostile_names(bait: str) -> None:
    """A name stands as text on the page, on one line of the text, and in one cell of the table."""
    measure = Measure(bait, 0.5, 0.1, None, 3, bait, bait)
    moved = Measure("cosine E to first", 0.5, 0.1, None, 3, "cosine", bait)
    each = tuple(RevisionFigures(bait, bait, None, bait, {"E": bait}, (moved, measure)) for _ in range(2))
    evolution = Evolution(bait, Headline(bait, bait, bait), each)
    harmless(page(evolution))
    assert all(character.isprintable() or character == "\n" for character in text(evolution))
    assert len(comma_separated(evolution_table.evolution_figures(evolution)).splitlines()) == 5


def test_options_that_do_not_fit(steps: Path) -> None:
    for words, says in (
        (f"{NAMES} --text x", "--text cannot be used with --revisions"),
        (f"{NAMES} --second x", "--second cannot be used with --revisions"),
        (f"{NAMES} --similarity", "--similarity cannot be used"),
        ("--resume x", "--resume needs --revisions"),
    ):
        result = run(f"analyze {words}", steps)
        assert result.exit_code == 2 and says in result.stderr


def test_a_file_of_the_run_is_not_replaced(steps: Path) -> None:
    refused(f"analyze {NAMES} --csv {steps / 'step0' / 'config.json'}", steps)
    refused(f"analyze {NAMES} --resume {steps / 'step0' / 'config.json'}", steps)
