"""Healthy graphs behind an optimiser, and those that other exporters wrote: none may be refused.

python -m tests.onnx.planted.healthy --write [DIR] [--only KIND...]    measure again, and write docs/pages/healthy.json

A kind is an optimiser, `exported` (transformers' exporter), `torch` (torch's own exporter), or `others`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

import tieconv
from fixtures import exporters
from tests.lazy import torch_export
from tests.onnx.exported import build
from tests.onnx.graphs import write_optimised
from tests.onnx.planted.once import torch_once
from tests.onnx.planted.rows_file import measure_rows

WRAPPED = ("bert", "cohere", "gemma2", "gpt2", "granite", "llama", "mistral-48")
"""Models that torch's own exporter writes too, with the plain wrappers of `torch_export`."""
FILE = Path(__file__).parents[3] / "docs" / "pages" / "healthy.json"
MODELS = (
    "bart", "bert", "cohere", "gemma2", "gpt2", "granite", "llama", "mistral-48", "mixtral", "qwen2", "qwen3", "t5",
)  # fmt: skip


def by_onnxruntime(source: Path, to: Path) -> None:
    write_optimised(source, to, "EXTENDED")


def by_onnxscript(source: Path, to: Path) -> None:
    from onnxscript import optimizer

    onnx.save(optimizer.optimize(onnx.load(source)), to)


def by_onnxslim(source: Path, to: Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), to)


OPTIMISERS: dict[str, Callable[[Path, Path], None]] = {
    "onnxruntime": by_onnxruntime,
    "onnxscript": by_onnxscript,
    "onnxslim": by_onnxslim,
}
KINDS = ("exported", *OPTIMISERS, "torch", "others")


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


def measure(folder: Path, kinds: Collection[str] = KINDS) -> Iterator[dict[str, Any]]:
    """Every graph of these kinds. The torch side of each model runs once."""
    with torch_once():
        for name in MODELS:
            made = build(name, "float32", folder)
            if "exported" in kinds:
                yield row(name, "transformers", "", made.graph, made.model)
            for optimiser, change in OPTIMISERS.items():
                if optimiser in kinds:
                    path = made.graph.with_name(f"by-{optimiser}.onnx")  # beside the data
                    change(made.graph, path)
                    yield row(name, "transformers", optimiser, path, made.model)
            if "torch" in kinds and name in WRAPPED:
                path = made.graph.with_name("by-torch.onnx")
                torch_export.by_torch(made.model, path)
                yield row(name, "torch", "", path, made.model)
        for name in exporters.COMPARED if "others" in kinds else ():
            (graph,) = (exporters.HERE / name).glob("*.onnx")
            exporter, _, model = name.partition("-")
            yield row(model, exporter, "", graph, exporters.HERE / "checkpoints" / name)


def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row's place in the list: transformers' exporter first."""
    return (
        row["exporter"] != "transformers",
        row["exporter"] == "torch",
        row["model"],
        row["exporter"],
        row["optimiser"],
    )


if __name__ == "__main__":
    asked = sys.argv.index("--only") if "--only" in sys.argv else len(sys.argv)
    chosen = tuple(sys.argv[asked + 1 :]) or KINDS
    del sys.argv[asked:]
    measure_rows(FILE, partial(measure, kinds=chosen), order)
