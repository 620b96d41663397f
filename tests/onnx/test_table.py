"""The published table: every healthy graph passes, every fault fails, and measuring again says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.onnx.exported import MODELS
from tests.onnx.table import DTYPES, FAULTS, FILE, fault_row, healthy_row

ROWS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
CELLS = [(row["model"], row["dtype"], row["fault"]) for row in ROWS]


def test_the_table_is_whole() -> None:
    """It has each model in each precision, and each fault wherever it can be planted."""
    healthy = [(name, dtype, "") for name in MODELS for dtype in DTYPES]
    damaged = [
        (name, dtype, label) for label, (_, names, dtypes) in FAULTS.items() for name in names for dtype in dtypes
    ]
    assert sorted(CELLS) == sorted(healthy + damaged)


def test_the_table_shows_a_gate_that_works() -> None:
    """Healthy rows passed with room to spare, damaged rows failed."""
    for row in ROWS:
        assert row["verdict"] == ("failed" if row["fault"] else "passed"), row
        assert bool(row["failed"]) == bool(row["fault"])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "dtype", "fault"), CELLS, ids=["-".join(filter(None, cell)) for cell in CELLS])
def test_the_table_is_true(exported, tmp_path: Path, model: str, dtype: str, fault: str) -> None:
    """Measured again, verdict and failed gates are what the table says, and the RMS ratio within a factor of two."""
    (published,) = [row for row in ROWS if (row["model"], row["dtype"], row["fault"]) == (model, dtype, fault)]
    made = exported(model, dtype)
    again = fault_row(fault, model, dtype, made, tmp_path) if fault else healthy_row(model, dtype, made)
    assert (again["verdict"], again["failed"]) == (published["verdict"], published["failed"])
    assert again["rms_ratio"] == pytest.approx(published["rms_ratio"], rel=1.0)
