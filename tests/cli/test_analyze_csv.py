"""`analyze --csv`: every figure as a line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.run import ok, refused
from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.reporters.figure_table import ANALYSIS_COLUMNS as COLUMNS
from tieconv.reporters.figure_table import analysis_figures as figures
from tieconv.reporters.figure_table import comma_separated

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-diverged"])
def test_the_table_has_every_figure_of_the_json(name: str, tmp_path: Path) -> None:
    """The same figures in the same order with every digit, and an empty cell for what is not given."""
    model = str(MODELS / name)
    report = json.loads(ok("analyze --json", model, "--csv", tmp_path / "t.csv").stdout)
    header, *lines = csv.reader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    assert header == list(COLUMNS)
    measured = [(section["title"], measure) for section in report["sections"] for measure in section["measures"]]
    assert len(lines) == len(measured) > 3
    for line, (title, measure) in zip(lines, measured, strict=True):
        assert line[:3] == [model, title, measure["name"]]
        for cell, key in zip(line[3:7], ("value", "floor", "ceiling", "n"), strict=True):
            assert (None if cell == "" else float(cell)) == measure[key]
        assert line[7:] == [measure["unit"], measure["says"]]


def test_names_are_escaped_and_quoted() -> None:
    """A comma, a quote or a control character of a name stays in its cell, on its line."""
    section = Section('a, "b"', "", (Measure("x\ny\x1b[31m", 0.1 + 0.2, None, None, 3, "", "one, two"),))
    text = comma_separated(figures(Analysis("m,n", (section,), "unknown", "")))
    _, line = csv.reader(text.splitlines())
    assert len(text.splitlines()) == 2 and "\x1b" not in text
    assert line[0] == "m,n" and line[1] == 'a, "b"' and line[3] == "0.30000000000000004" and line[8] == "one, two"


def test_a_file_of_the_model_is_not_replaced(tmp_path: Path) -> None:
    """A table that would replace a file of the model is refused before anything is measured."""
    (tmp_path / "config.json").write_text("{}")
    refused("analyze --csv", tmp_path / "config.json", tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
