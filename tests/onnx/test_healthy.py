"""Healthy graphs: none of those measured was refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures import exporters
from tests.lazy import torch_export
from tests.onnx.planted.healthy import FILE, MODELS, OPTIMISERS, WRAPPED, row
from tests.onnx.table import FILE as TABLE

ROWS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]


def test_no_healthy_graph_was_refused() -> None:
    """At least 70 graphs of six exporters, by three optimisers too; all passed with room to spare."""
    assert {row["model"] for row in ROWS if row["exporter"] == "transformers"} == set(MODELS)
    assert len({row["exporter"] for row in ROWS}) >= 6
    assert {row["model"] for row in ROWS if row["exporter"] == "torch"} == {*WRAPPED}
    assert {row["optimiser"] for row in ROWS} == {"", *OPTIMISERS}
    half = [row for row in json.loads(TABLE.read_text())["rows"] if not row["fault"] and row["dtype"] == "float16"]
    assert len(ROWS) + len(half) >= 70
    for entry in (*ROWS, *half):
        assert (entry["verdict"], entry["failed"]) == ("passed", []), entry
        assert entry["rms_ratio"] < 1.5 and entry["max_ratio"] < 3 and entry["case_ratio"] < 4, entry


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", MODELS)
def test_an_optimised_graph_passes(exported, name: str, optimiser: str) -> None:
    """Measured again."""
    made = exported(name)
    path = made.graph.with_name(f"by-{optimiser}.onnx")  # beside the data
    OPTIMISERS[optimiser](made.graph, path)
    assert row(name, "transformers", optimiser, path, made.model)["verdict"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
def test_a_graph_of_torch_passes(exported, tmp_path: Path, name: str) -> None:
    """torch's own exporter, with a cache, without transformers' exporter."""
    made = exported(name)
    torch_export.by_torch(made.model, tmp_path / "model.onnx")
    assert row(name, "torch", "", tmp_path / "model.onnx", made.model)["verdict"] == "passed"


def test_the_graphs_of_other_exporters_are_in_the_list() -> None:
    """The ordinary tests measure those again."""
    listed = {f"{row['exporter']}-{row['model']}" for row in ROWS}
    assert set(exporters.COMPARED) <= listed
