"""`tieconv analyze` of several models: --against, --second, --revisions, and their pages."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

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
def trio(models: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A tied model, and two untied ones whose head is nearly its table and whose input table is not."""
    tied = tmp_path / "tied"
    shutil.copytree(models / "llama-tied", tied)
    table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"].float()
    made = []
    for seed in (1, 2):
        folder = tmp_path / f"untied{seed}"
        shutil.copytree(models / "llama-untied", folder)
        stored = load_file(folder / "model.safetensors")
        embedding, output = noise_like(table, seed), noise_like(table, seed + 10)
        stored["model.embed_tokens.weight"] = noise_like(table, 0) + 0.1 * embedding
        stored["lm_head.weight"] = table + 0.1 * output
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        made.append(folder)
    return tied, made[0], made[1]


def noise_like(table: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(table.shape, generator=torch.Generator().manual_seed(seed)) * table.std()


def sections(*words: object) -> dict[str, dict[str, object]]:
    document = json.loads(ok("analyze --json", *map(str, words)).stdout)
    return {section["title"]: section for section in document["sections"]}


def test_against(trio: tuple[Path, Path, Path]) -> None:
    """One more section: output-shaped, with floors; --second fills the ceilings in."""
    tied, untied, second = trio
    alone = sections(tied, "--against", untied)["Alignment"]
    assert alone["detail"]["shape"] == "output"  # type: ignore[index]
    both = sections(tied, "--against", untied, "--second", second)["Alignment"]
    for before, after in zip(alone["measures"], both["measures"][:1], strict=False):  # type: ignore[call-overload,index]
        assert before["ceiling"] is None and after["value"] == before["value"]
    measures = {entry["name"]: entry for entry in both["measures"]}  # type: ignore[attr-defined]
    assert measures["knn U→T"]["ceiling"] == measures["knn U→U'"]["value"] > 0.5
    assert "output-shaped" in ok("analyze", tied, "--against", untied).stdout


def test_refusals(trio: tuple[Path, Path, Path]) -> None:
    """--second alone, a tied reference, an untied subject, a reference that is not there."""
    tied, untied, second = trio
    assert "--against" in refused("analyze", tied, "--second", second)
    assert "stores one table, but a reference must be untied" in refused(
        "analyze", untied.parent / "tied", "--against", tied
    )
    assert "two tables" in refused("analyze", untied, "--against", second)
    assert refused("analyze", tied, "--against", tied / "none")


def test_a_reference_that_was_only_untied_has_one_role(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Two equal tables say nothing of roles: refused as a tied one is, also as the second."""
    tied, untied, _ = trio
    ok("untie", tied, "-o", tmp_path / "copy")
    for words in (("--against", tmp_path / "copy"), ("--against", untied, "--second", tmp_path / "copy")):
        assert "has two equal tables" in refused("analyze", tied, *words)


def test_the_second_reference_is_another_model(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The same directory, a copy of it, and one that shares a single table: the ceilings would be those of itself."""
    tied, untied, second = trio
    shutil.copytree(untied, tmp_path / "copy")
    shutil.copytree(second, tmp_path / "half")
    tensors = load_file(untied / "model.safetensors")
    half = load_file(second / "model.safetensors")
    half["lm_head.weight"] = tensors["lm_head.weight"]
    save_file(half, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    for reference in (untied, tmp_path / "copy", tmp_path / "half"):
        assert "another seed" in refused("analyze", tied, "--against", untied, "--second", reference)


def test_text_has_ceilings(trio: tuple[Path, Path, Path]) -> None:
    """The table for people has chance and, with --second, what is possible at all; without, the column is not there."""
    tied, untied, second = trio
    lines = ok("analyze", tied, "--against", untied, "--second", second).stdout.splitlines()
    (head,) = (line for line in lines[lines.index("Alignment") :] if line.split()[:2] == ["figure", "value"])
    assert head.split() == ["figure", "value", "floor", "ceiling", "n", "meaning"]
    measures = {m["name"]: m for m in sections(tied, "--against", untied, "--second", second)["Alignment"]["measures"]}
    (row,) = (line for line in lines if line.strip().startswith("rsa E→T"))
    assert f"{measures['rsa E→T']['ceiling']:.3g}" == row[head.index("ceiling") :].split()[0]
    bare = next(line for line in lines[lines.index("Rows") :] if line.split()[:2] == ["figure", "value"])
    assert "ceiling" not in bare
    letters = ["T:", "tied", "table", "of", f"{tied};", "E:"]
    assert any(line.split()[:6] == letters and "U': " in line for line in lines)


def test_html(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The page is written beside the result, with a map of each table, whose numbers --json has too."""
    page = tmp_path / "report.html"
    titles = sections(trio[1], "--html", page)
    text = page.read_text("utf-8")
    harmless(text)
    assert {"Map: input embedding", "Map: output embedding"} <= set(titles)
    for heading in ("Norm profile", "Where the two tables differ", "Map of tokens"):
        assert heading in text


def test_page_never_replaces_a_file_of_the_model(trio: tuple[Path, Path, Path]) -> None:
    """FILE may not be the model's own, and a directory that is not there is an error."""
    tied = trio[0]
    assert "is a file of the model" in refused("analyze", tied, "--html", tied / "config.json")
    assert "x.html cannot be written: no such file or directory" in refused(
        "analyze", tied, "--html", tied / "none" / "x.html"
    )


def test_tied_model_has_one_map(models: Path, tmp_path: Path) -> None:
    """One table, one map."""
    titles = sections(models / "llama-tied", "--html", tmp_path / "x.html")
    assert [title for title in titles if title.startswith("Map")] == ["Map: input embedding"]


SCHEMA = json.loads((files("tieconv.reporters") / "schemas" / "evolution.schema.json").read_text())


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    for number in range(3):
        turn = 0.2 * number
        checkpoint(tmp_path / "run" / f"step{number}", noise(0), np.cos(turn) * noise(2) + np.sin(turn) * noise(3))
    return tmp_path / "run"


NAMES = "--revisions step0,step1,step2"


def test_json_has_its_schema(steps: Path) -> None:
    document = json.loads(ok(f"analyze {NAMES} --json", steps).stdout)
    validate(document, SCHEMA)
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
