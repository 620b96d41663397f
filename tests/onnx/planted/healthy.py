"""Healthy graphs behind an optimiser, and those that other exporters wrote: none may be refused.

python -m tests.onnx.planted.healthy --write [DIR]    measure again, and write docs/pages/healthy.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

import tieconv
from fixtures import exporters
from tests.onnx.exported import build
from tests.onnx.planted.torch_once import torch_once

FILE = Path(__file__).parents[3] / "docs" / "pages" / "healthy.json"
MODELS = (
    "bart",
    "bert",
    "cohere",
    "gemma2",
    "gpt2",
    "granite",
    "llama",
    "mistral-48",
    "mixtral",
    "qwen2",
    "qwen3",
    "t5",
)


def by_onnxruntime(source: Path, to: Path) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def by_onnxscript(source: Path, to: Path) -> None:
    from onnxscript import optimizer

    onnx.save(optimizer.optimize(onnx.load(source)), to)


OPTIMISERS: dict[str, Callable[[Path, Path], None]] = {"onnxruntime": by_onnxruntime, "onnxscript": by_onnxscript}


def row(name: str, exporter: str, optimiser: str, graph: Path, model: Path) -> dict[str, Any]:
    report = tieconv.parity(graph, model, provider="cpu")
    values = {gate.name: gate.value for gate in report.gates}
    return {
        "model": name,
        "exporter": exporter,
        "optimiser": optimiser,
        "verdict": str(report.verdict),
        "failed": [gate.name for gate in report.gates if not gate.passed],
        **{key: round(values[key] or 0.0, 2) for key in ("rms_ratio", "max_ratio", "case_ratio")},
    }


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """Every graph. The torch side of each model runs once."""
    with torch_once():
        for name in MODELS:
            made = build(name, "float32", folder)
            yield row(name, "transformers", "", made.graph, made.model)
            for optimiser, change in OPTIMISERS.items():
                path = made.graph.with_name(f"by-{optimiser}.onnx")  # beside the data
                change(made.graph, path)
                yield row(name, "transformers", optimiser, path, made.model)
        for name in exporters.COMPARED:
            (graph,) = (exporters.HERE / name).glob("*.onnx")
            exporter, _, model = name.partition("-")
            yield row(model, exporter, "", graph, exporters.HERE / "checkpoints" / name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for entry in measure(Path(sys.argv[2] if len(sys.argv) > 2 else scratch)):
            print(json.dumps(entry), flush=True)
            found.append(entry)
    if "--write" in sys.argv:
        FILE.write_text(json.dumps({"rows": found}, indent=1) + "\n", encoding="utf-8")
