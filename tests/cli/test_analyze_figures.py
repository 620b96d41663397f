"""The figures of `analyze`: its first line, every figure as a line of CSV, each plot as a file, and revisions."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.analysis.test_evolution import checkpoint, noise
from tests.cli.run import ok, refused, run
from tests.reporters.reports import BAITS, full
from tests.reporters.test_analyze_html import harmless
from tests.schemas import validate
from tieconv import analyze
from tieconv.analysis.alignment import Contest, certainty, verdict
from tieconv.checkpoint.results.analysis import (
    MAY_BE_TIED,
    Analysis,
    Evolution,
    Headline,
    Measure,
    RevisionFigures,
    Section,
)
from tieconv.install import install_command
from tieconv.reporters import figure_table as evolution_table
from tieconv.reporters.figure_table import ANALYSIS_COLUMNS as COLUMNS, analysis_figures as figures, comma_separated
from tieconv.reporters.html.analyze_page import render_analysis as render, render_evolution as page
from tieconv.reporters.html.svg import Frame, Plot, svg_files
from tieconv.reporters.text.analyze_text import render_evolution as text
from tieconv.version import VERSION

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
ANSWERS = {
    "llama-duplicated": ("Yes, nothing is lost. ", "proved by comparing every byte"),
    "llama-tied": ("The model is tied. Nothing to re-tie.", "certain, because the model stores one table"),
    "llama-untied": ("No: the tables are independent", "measured on every row, but nearest rows on 48 sampled rows"),
    "llama-diverged": ("The weights alone do not decide. ", ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_headline_answers_whether_the_model_may_be_tied(name: str) -> None:
    """The first line of the screen, the JSON and the page say the same."""
    answer, sure = ANSWERS[name]
    model = str(MODELS / name)
    first, second = ok("analyze", model).stdout.splitlines()[:2]
    ending = f" How sure: {sure}." if sure else ""
    assert first.startswith(f"{model}: {MAY_BE_TIED} {answer}") and first.endswith(ending)
    headline = json.loads(ok("analyze --json", model).stdout)["headline"]
    assert first == f"{model}: {headline['question']} {headline['answer']}{ending}"
    assert headline["certainty"] == sure and ("How sure" in first) is bool(sure)
    assert second == f"Relation of the two tables: {analyze(model).relation}"


def test_the_question_of_another_model_is_answered_first() -> None:
    """With `--against` the headline says which table the tied one is like, not whether a tied model may be tied."""
    tied, untied = MODELS / "llama-tied", MODELS / "llama-untied"
    first = ok("analyze", tied, "--against", untied).stdout.splitlines()[0]
    question = f"Which table of {untied} does the tied table resemble?"
    assert first.startswith(f"{tied}: {question} The tied table is input-shaped. ")
    assert first.endswith(" How sure: all 3 measures agree, each by more than 3 standard errors.")
    document = json.loads(ok("analyze --json", tied, "--against", untied).stdout)
    assert document["verdict"] == "The model is tied. Nothing to re-tie."
    assert document["headline"]["answer"] == document["sections"][-1]["sentence"]


def test_nothing_is_said_twice() -> None:
    """The answer of the headline has no section of its own, and a reason in a sentence no rows that repeat it."""
    untied = MODELS / "llama-untied"
    text, document = ok("analyze", untied).stdout, json.loads(ok("analyze --json", untied).stdout)
    assert text.count(document["verdict"]) == 1 and "Re-tying" not in text
    assert text.count("has no tokenizer.json") == 1
    missing = [measure for section in document["sections"] for measure in section["measures"] if not measure["n"]]
    assert any("no tokenizer.json" in str(measure) for measure in missing)


def contest(head: float, embedding: float) -> Contest:
    return Contest("knn", (embedding, 0.0, 0.01, None), (head, 0.0, 0.01, None))


def test_how_sure_an_alignment_is() -> None:
    """Votes that agree, that are too few, and that contradict each other."""
    votes = [contest(0.9, 0.1), contest(0.9, 0.1), contest(0.5, 0.5)]
    assert certainty(verdict(votes)[0], votes) == (
        "2 of 3 measures agree, each by more than 3 standard errors, and none contradicts"
    )
    mixed = [contest(0.9, 0.1), contest(0.1, 0.9), contest(0.5, 0.5)]
    assert verdict(mixed)[0] == "mixed" and certainty("mixed", mixed) == ""


def test_the_page_asks_answers_and_says_how_sure(tmp_path: Path) -> None:
    """In this order, before anything else; an analysis without a certainty has no empty sentence."""
    text = re.sub(r"<[^>]+>", "\n", render(analyze(MODELS / "llama-duplicated"))).split("Relation of the two")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[-3] == MAY_BE_TIED and lines[-2].startswith("Yes, nothing is lost")
    assert lines[-1] == "How sure: proved by comparing every byte."
    assert "How sure" not in render(full())


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


SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> str:
    """All visible text of a file, which needs no style sheet and has a size."""
    source = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(source)
    assert root.tag == f"{SVG}svg" and int(root.attrib["width"]) > 400 and int(root.attrib["height"]) > 100
    assert "class=" not in source and "var(" not in source
    for element in root.iter():
        if element.tag in (f"{SVG}path", f"{SVG}rect"):
            style = element.attrib.get("style", "") + element.attrib.get("fill", "")
            assert re.search(r"#[0-9a-f]{3}", style), f"{path}: an element without a colour"
    return " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-diverged"])
def test_every_plot_is_a_file(name: str, tmp_path: Path) -> None:
    """As many files as the page has figures; each has its heading, and a caption with the model and the version."""
    ok("analyze", MODELS / name, "--figures", tmp_path / "f", "--html", tmp_path / "p.html")
    headings = re.findall(r"<figure><h3>([^<]*)</h3>", (tmp_path / "p.html").read_text(encoding="utf-8"))
    files = sorted((tmp_path / "f").iterdir())
    assert len(files) == len(headings) > 1
    for path, heading in zip(files, headings, strict=True):
        shown = texts(path)
        assert shown.startswith(heading) and name in shown.replace(" ", "") and f"tieconv {VERSION}." in shown


def test_a_comparison_names_its_tables(tmp_path: Path) -> None:
    """The bars say which table is T, E and U, and what the marks mean."""
    ok("analyze", MODELS / "llama-tied", "--against", MODELS / "llama-untied", "--figures", tmp_path / "f")
    (bars,) = [path for path in (tmp_path / "f").iterdir() if "agreement" in path.name]
    shown = texts(bars)
    assert "T: tied table of" in shown and "chance" in shown and "ceiling: two untied seeds" in shown


def test_revisions(tmp_path: Path) -> None:
    """Each curve, with its floor, the revisions and the model."""
    for step in ("step1", "step2"):
        shutil.copytree(MODELS / "llama-untied", tmp_path / "run" / step)
    ok("analyze", tmp_path / "run", "--revisions", "step1,step2", "--figures", tmp_path / "f")
    files = sorted((tmp_path / "f").iterdir())
    assert len(files) == 10
    shown = texts(files[3])
    assert "chance, in the same colour" in shown and "2 revisions of" in shown and "from step1 to step2" in shown


def test_a_hostile_name_stays_text() -> None:
    """Markup and control characters of a name or a model reach no file."""
    frame = Frame("x", (0, 1), (0, 1))
    frame.line([(0, 0), (1, 1)], "c0")
    plot = Plot("<script>\x1b[31m", frame.svg(), "Says <b>.", (("c0", "</text><a>"),))
    ((name, text),) = svg_files([(plot, "Measured on \x1b]0;x\x07<svg>.")]).items()
    assert name == "01-script-31m.svg"
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "rect", "text", "path", "g")
    }
    assert "\x1b" not in text and "<b>" not in text


def test_captions_speak_of_no_page() -> None:
    """A sentence about a section of the page is left out."""
    plot = Plot("x", Frame("x", (0, 1), (0, 1)).svg(), "Padding is flat. The section Rows lists it. Look at it.")
    (text,) = svg_files([(plot, "Measured on m.")]).values()
    assert "<desc>Padding is flat. Look at it. Measured on m. tieconv" in text


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused("analyze", MODELS / "llama-untied", "--figures", tmp_path / "file" / "f")
    assert "cannot be written" in error


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
