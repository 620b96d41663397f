"""The wide table: every model in both precisions, healthy and with every fault that it can have.

python -m tests.onnx.table --write [DIR]    measure again and write docs/pages/parity.json; graphs are kept in DIR
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tieconv
from tests.onnx import faults
from tests.onnx.exported import MODELS, Exported, build
from tieconv.checkpoint.results.parity import Parity

FILE = Path(__file__).parents[2] / "docs" / "pages" / "parity.json"
DTYPES = ("float32", "float16")
FAULTS: dict[str, tuple[faults.Fault, tuple[str, ...], tuple[str, ...]]] = {
    "GELU: tanh instead of erf": (faults.gelu, ("bert",), ("float32",)),
    "RMS norm eps 1e-5 instead of 1e-6": (faults.eps, ("llama", "qwen3", "gemma2"), ("float32",)),
    "LayerNorm eps 1e-5 instead of 1e-12": (faults.layer_norm_eps, ("bert",), ("float32",)),
    "attention mask dropped": (faults.mask_dropped, ("llama", "gpt2", "bert", "opt"), DTYPES),
    "RoPE frequencies + 1 %": (faults.rope, ("llama", "qwen3", "gemma2"), DTYPES),
    "two head rows swapped": (faults.head_rows_swapped, ("llama", "gpt2", "bert"), DTYPES),
    "head rounded to fp16": (faults.head_rounded, ("llama", "bert"), ("float32",)),
    "head bias applied twice": (faults.bias_twice, ("bert",), DTYPES),
    "logit soft cap dropped": (faults.softcap_dropped, ("gemma2",), ("float32",)),
    "cached keys of two layers swapped": (faults.caches_swapped, ("llama", "gpt2"), DTYPES),
}
"""Each fault with the models and precisions that it is planted in: those of float32 alone drown in fp16 rounding."""


def row(report: Parity) -> dict[str, Any]:
    """What the page shows of a report."""
    values = {gate.name: gate.value for gate in report.gates}
    return {
        "verdict": str(report.verdict),
        "failed": [gate.name for gate in report.gates if not gate.passed],
        **{name: _short(values.get(name)) for name in ("rms_ratio", "max_ratio", "case_ratio", "steps_rms_ratio")},
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2e}")


def healthy_row(name: str, dtype: str, made: Exported) -> dict[str, Any]:
    return {"model": name, "dtype": dtype, "fault": "", **row(tieconv.parity(made.graph, made.model, provider="cpu"))}


def fault_row(label: str, name: str, dtype: str, made: Exported, folder: Path) -> dict[str, Any]:
    graph = faults.plant(made.graph, FAULTS[label][0], folder / "model.onnx")
    report = tieconv.parity(graph, made.model, provider="cpu", budget="1s")
    return {"model": name, "dtype": dtype, "fault": label, **row(report)}


def measure(folder: Path) -> list[dict[str, Any]]:
    """Every row, healthy ones first."""
    pairs = [(name, dtype) for name in MODELS for dtype in DTYPES]
    rows = [healthy_row(name, dtype, build(name, dtype, folder)) for name, dtype in pairs]
    for label, (_, names, dtypes) in FAULTS.items():
        for name, dtype in ((name, dtype) for name in names for dtype in dtypes):
            rows.append(fault_row(label, name, dtype, build(name, dtype, folder), folder))
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(sys.argv[2] if len(sys.argv) > 2 else scratch))
    text = json.dumps({"rows": found}, indent=1) + "\n"
    if "--write" in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text)
