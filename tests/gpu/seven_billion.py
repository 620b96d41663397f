"""A model of 7.5 billion weights in bf16, and parity whose reference runs on the device."""

from __future__ import annotations

import time
from typing import Any

import tieconv
from tests.gpu import latency
from tests.gpu.memory import _free, open_with, run_once
from tests.gpu.models import SEVEN, Workshop
from tests.gpu.verdicts import figures, planted_graph
from tests.lazy import torch, transformers as tr
from tests.onnx.graphs import disk
from tieconv.checkpoint.graph_plan import PRECISIONS

PRECISION = "bf16"
CASES = ("verdict", "session")
LENGTHS = (1, 64)
ON_DEVICE = (
    ("llama", "fp32", ""), ("llama", "bf16", ""), ("gpt2", "fp16", ""), ("t5", "fp32", ""),
    ("llama", "fp32", "two head rows swapped"), ("llama", "fp16", "two head rows swapped"),
)  # fmt: skip
"""Model, precision and planted fault of the measurements whose reference runs on the device."""


def on_device_row(workshop: Workshop, provider: str, name: str, precision: str, fault: str) -> dict[str, Any]:
    """Parity with the reference on the device; ``fault`` is planted into the graph."""
    with planted_graph(workshop, name, precision, fault) as graph:
        start = time.monotonic()
        report = tieconv.parity(graph, workshop.model(name), provider=provider, reference_device=provider)
    where = report.metrics.reference.device if report.metrics else None
    took = round(time.monotonic() - start, 1)
    return {"model": name, "precision": precision, "fault": fault or None, **figures(report),
            "reference_device": where, "parity_seconds": took}  # fmt: skip


def seven_row(workshop: Workshop, provider: str, case: str) -> dict[str, Any]:
    """The verdict of the large bf16 graph, or what its session holds and how long a pass takes."""
    return _verdict(workshop, provider) if case == CASES[0] else _session(workshop, provider)


def _verdict(workshop: Workshop, provider: str) -> dict[str, Any]:
    start = time.monotonic()
    graph, model = workshop.graph(SEVEN, PRECISION), workshop.model(SEVEN)
    exported = time.monotonic()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    report = tieconv.parity(graph, model, provider=provider, reference_device=provider)
    return {
        "model": SEVEN, "precision": PRECISION, **figures(report),
        "weights": sum(weight.numel() for weight in _meta(workshop).parameters()),
        "reference_device": report.metrics.reference.device if report.metrics else None,
        "export_seconds": round(exported - start, 1), "parity_seconds": round(time.monotonic() - exported, 1),
    }  # fmt: skip


def _meta(workshop: Workshop) -> Any:
    with torch.device("meta"):
        return tr.AutoModelForCausalLM.from_config(tr.AutoConfig.from_pretrained(workshop.model(SEVEN)))


def _session(workshop: Workshop, provider: str) -> dict[str, Any]:
    graph = workshop.graph(SEVEN, PRECISION)
    if provider == "cuda":
        torch.cuda.init()
        torch.empty(1, device="cuda")
    free = _free(provider)
    session = open_with(graph, provider, "exact", PRECISIONS[PRECISION])
    loaded = free - _free(provider)
    run_once(session, graph)
    ran = free - _free(provider)
    rounds = latency.ROUNDS if provider == "cuda" else latency.REHEARSED
    times: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        model = tr.LlamaForCausalLM.from_pretrained(workshop.model(SEVEN), dtype=torch.bfloat16).eval().to(provider)
        rows = int(model.config.vocab_size)
        for length in LENGTHS:
            ids = torch.randint(0, rows, (1, length), generator=torch.Generator().manual_seed(length))
            batch = latency.Batch(ids, torch.ones_like(ids))
            runs = {"gemm": latency.bound(session, graph, batch), latency.TORCH: latency._pass(model, batch, provider)}
            taken = latency.measure(runs, rounds, lambda: latency._wait(provider))
            times[str(length)] = {form: latency.quantiles(values)["median"] for form, values in taken.items()}
    matrix = rows * int(model.config.hidden_size) * 2
    stored = disk(graph.parent)
    return {
        "model": SEVEN, "precision": PRECISION, "active": session.use.active, "rounds": rounds,
        "matrix": matrix, "stored": stored, "loaded": loaded, "ran": ran,
        "beyond_stored": round((loaded - stored) / matrix, 3), "milliseconds": times,
    }  # fmt: skip
