"""What each program generated from its layout: what is committed, and the programs themselves (``-m slow``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.onnx.layouts.families import FAMILIES  # noqa: E402
from tests.onnx.layouts.measure import FILE, VARIABLES, Program, command, rows_of  # noqa: E402

TRIED = {
    "optimum": ["llama", "gpt2", "whisper"],
    "genai": ["llama", "gemma2"],
    "transformers.js": ["llama", "bert", "whisper"],
}
"""Families that the slow test generates with. The committed figures have them all."""


def test_what_is_committed() -> None:
    """Each program gave torch's tokens for eight families or more, with one matrix in a session."""
    measured = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(measured["versions"]) == set(VARIABLES)
    floats = [row for row in measured["rows"] if "quantise" not in row]
    for layout in VARIABLES:
        rows = [row for row in floats if (row["layout"], row["precision"]) == (layout, "fp32")]
        assert {row["family"] for row in rows} <= set(FAMILIES)
        run = [row for row in rows if "refused" not in row]
        assert all(row.get("same") and row["session"] == 1 for row in run), layout
        assert len(run) >= 8, layout
        assert all(row["tokens"] >= 40 for row in run), layout
    half = [row for row in floats if row["precision"] == "fp16" and "refused" not in row]
    assert {row["layout"] for row in half} == set(VARIABLES)
    assert all(row["same"] and row["session"] == 1 for row in half)


def test_quantised_graphs_that_are_committed() -> None:
    """Each program gave the tokens of the graph for three families or more, in each scheme."""
    rows = [row for row in json.loads(FILE.read_text(encoding="utf-8"))["rows"] if "quantise" in row]
    assert all(row["same"] and row["tokens"] >= 40 for row in rows if "refused" not in row)
    for layout in VARIABLES:
        for scheme in ("int4", "int8", "dynamic-int8"):
            chosen = [row for row in rows if (row["layout"], row["quantise"]) == (layout, scheme)]
            assert len([row for row in chosen if row.get("same")]) >= 3, (layout, scheme)


@pytest.mark.slow
@pytest.mark.parametrize("layout", VARIABLES)
def test_programs(tmp_path: Path, layout: str) -> None:
    """The program loads the layout and generates torch's tokens."""
    if not command(layout):
        pytest.skip(f"{VARIABLES[layout]} does not name an installed program: see tests/onnx/layouts/measure.py")
    program = Program(layout)
    for family in TRIED[layout]:
        (row,) = rows_of(family, {layout: program}, tmp_path / family)
        assert row.get("same"), row
        assert row["session"] == 1
    program.close()
