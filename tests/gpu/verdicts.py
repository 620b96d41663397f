"""One model in one precision: the verdict on the provider, with every gate's figure, TF32 apart, and node places."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tieconv
from tests.gpu.machine import loaded_libraries
from tests.gpu.models import Workshop
from tests.gpu.standin import STANDIN
from tests.lazy import ort_session, passes
from tests.onnx import faults
from tests.onnx.table import FAULTS
from tieconv.checkpoint.graph_plan import PRECISIONS
from tieconv.checkpoint.results.parity import Parity
from tieconv.onnx.parity.graph_file import read_graph

PRECISION = {dtype: precision for precision, dtype in PRECISIONS.items()}
BF16 = (
    "attention mask dropped",
    "two head rows swapped",
    "head bias applied twice",
    "cached keys of two layers swapped",
)
"""Faults that bf16 does not round away: their fp16 ratios are 39 and more, and bf16 has 8 times the unit."""
STORED = {
    "a row of a token that is never fed": (faults.embedding_row(777), ("llama", "bert")),
    "the batch axis frozen": (faults.frozen(0, 1), ("llama", "bert")),
}
"""Faults that are told without running the graph, planted in every precision."""


def planted() -> dict[str, list[tuple[str, str]]]:
    """Every fault with the models and precisions that it is planted in."""
    found: dict[str, list[tuple[str, str]]] = {}
    for label, (_, names, dtypes) in FAULTS.items():
        precisions = [PRECISION[dtype] for dtype in dtypes] + (["bf16"] if label in BF16 else [])
        found[label] = [(name, precision) for name in names for precision in precisions]
    for label, (_, names) in STORED.items():
        found[label] = [(name, precision) for name in names for precision in PRECISIONS]
    return found


def verdict_row(workshop: Workshop, provider: str, name: str, precision: str) -> dict[str, Any]:
    graph, model = workshop.graph(name, precision), workshop.model(name)
    report = tieconv.parity(graph, model, provider=provider)
    row = {"model": name, "precision": precision, **figures(report)}
    if report.verdict != "not_run":
        row["placement"] = placement(graph, provider, PRECISIONS[precision])
        row["libraries"] = loaded_libraries() if provider == "cuda" else []
    return row


def placement_row(workshop: Workshop, provider: str, name: str, precision: str) -> dict[str, Any]:
    """Where the nodes go on CUDA, nothing being computed; `NotRunError` for a heavy one on the CPU."""
    asked = "cuda" if provider == STANDIN else provider
    found = placement(workshop.graph(name, precision), asked, PRECISIONS[precision])
    return {"model": name, "precision": precision, "placement": found}


@contextmanager
def planted_graph(workshop: Workshop, name: str, precision: str, label: str) -> Iterator[Path]:
    """A graph with a fault while it is entered; the healthy one for an empty label."""
    if not label:
        yield workshop.graph(name, precision)
        return
    fault = (FAULTS.get(label) or STORED[label])[0]
    with tempfile.TemporaryDirectory(dir=workshop.directory) as folder:
        yield faults.plant(workshop.graph(name, precision), fault, Path(folder) / "model.onnx")


def fault_row(workshop: Workshop, provider: str, name: str, precision: str, label: str) -> dict[str, Any]:
    with planted_graph(workshop, name, precision, label) as graph:
        report = tieconv.parity(graph, workshop.model(name), provider=provider)
    return {"fault": label, "model": name, "precision": precision, **figures(report)}


def figures(report: Parity) -> dict[str, Any]:
    """What is kept of a report; every gate's value beside its limit, so that limits can be set from them."""
    worst = sorted((case for case in report.cases if case.ratio is not None), key=lambda case: -(case.ratio or 0))[:3]
    return {
        "verdict": str(report.verdict),
        "reason": report.reason or None,
        "hint": report.hint or None,
        "active": report.provider.active or None,
        "fallback_nodes": report.provider.fallback_nodes,
        "reference": report.metrics.reference.dtype if report.metrics else None,
        "failed": [gate.name for gate in report.gates if not gate.passed],
        "gates": {gate.name: {"value": short(gate.value), "limit": short(gate.limit)} for gate in report.gates},
        "worst_cases": [
            {
                "batch": case.batch, "sequence": case.sequence, "past": case.past, "padding": case.padding,
                "seed": case.seed, "ratio": short(case.ratio), "max_ratio": short(case.max_ratio),
            }
            for case in worst
        ],
        "errors": _errors(report),
        "tf32": _tf32(report),
    }  # fmt: skip


def _errors(report: Parity) -> dict[str, Any] | None:
    """Relative RMS and largest error of graph and floor."""
    logits = report.metrics.pools.logits if report.metrics else None
    if logits is None:
        return None
    return {
        side: {key: short(getattr(errors, key)) for key in ("relative_rms", "max_abs", "top1")}
        for side, errors in (("graph", logits.graph), ("floor", logits.floor))
    }


def _tf32(report: Parity) -> dict[str, Any] | None:
    """The same graph with products rounded to TF32: reported, never judged."""
    pools = report.metrics.tf32 if report.metrics else None
    if pools is None:
        return None
    return {
        key: {"ratio": short(pooled.ratio), "max_ratio": short(pooled.max_ratio)}
        for key, pooled in (("logits", pools.logits), ("steps", pools.steps))
        if pooled
    }


def short(value: float | None) -> float | None:
    """Four digits; what is no finite number is left out, as JSON has no word for it."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    return float(f"{value:.3e}")


def placement(path: Path, provider: str, dtype: str) -> dict[str, Any]:
    """Operators by provider, of a graph or of all graphs of a directory."""
    found: dict[str, Any] = {}
    for graph in sorted(path.glob("*.onnx")) if path.is_dir() else [path]:
        read = read_graph(str(graph))
        light = passes.shape_nodes(read)
        session = ort_session.open_session(
            graph, provider, precision=dtype, weight_gathers=passes.weight_gathers(read), shape_nodes=light
        )
        for part in session.inner.get_provider_graph_assignment_info():
            counts = found.setdefault(str(part.ep_name), Counter())
            counts.update(str(node.op_type) for node in part.get_nodes())
    return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}
