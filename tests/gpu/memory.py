"""Memory of a session of the large model with its head in one form: what the device has less of for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.models import Workshop, matrix_bytes
from tests.gpu.standin import STANDIN, free_bytes
from tests.lazy import bindings, graph_forward, ort, ort_session, torch
from tests.onnx.graphs import disk
from tieconv.checkpoint.graph_plan import PRECISIONS
from tieconv.checkpoint.results.parity import ProviderUse
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.model import Batch

ARENAS = {"exact": "kSameAsRequested", "default": "kNextPowerOfTwo"}
"""The allocator asks the device for what is needed, or (onnxruntime's default) for the next power of two."""
MEMORY = {"cuda": "device", "cpu": "host", STANDIN: "stand-in"}


def memory_row(workshop: Workshop, provider: str, precision: str, form: str, arena: str) -> dict[str, Any]:
    graph = workshop.form(precision, form)
    warm(workshop, provider)
    free = _free(provider)
    session = open_with(graph, provider, arena, PRECISIONS[precision])
    loaded = free - _free(provider)
    run_once(session, graph)
    ran = free - _free(provider)
    matrix = matrix_bytes(precision, small=workshop.small)
    stored = disk(graph.parent)
    return {
        "precision": precision, "form": form, "arena": arena, "active": session.use.active,
        "memory": MEMORY[provider], "matrix": matrix, "stored": stored,
        "loaded": loaded, "ran": ran, "beyond_stored": round((loaded - stored) / matrix, 3),
    }  # fmt: skip


def warm(workshop: Workshop, provider: str) -> None:
    """A first session, so that the context, the handles and the kernels of CUDA are counted before."""
    graph = workshop.graph("llama", "fp32")
    run_once(open_with(graph, provider, "exact", "float32"), graph)
    if provider == "cuda":
        torch.cuda.init()
        torch.empty(1, device="cuda")


def open_with(graph: Path, provider: str, arena: str, dtype: str) -> ort_session.Session:
    """A session as parity opens it, with an allocator of choice; one that is not on the provider raises."""
    if provider == "cpu":
        return ort_session.open_session(graph, "cpu", precision=dtype)
    ort_session.preload(ort)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    asked = {"use_tf32": "0", "arena_extend_strategy": ARENAS[arena]}
    made = ort.InferenceSession(
        str(graph), options, providers=[(ort_session.CUDA, asked), ort_session.CPU], enable_fallback=0
    )
    if made.get_providers()[0] != ort_session.CUDA:
        raise RuntimeError("onnxruntime gave a session on the CPU")
    return ort_session.Session(made, ort, ProviderUse("cuda", ort_session.CUDA))


def run_once(session: ort_session.Session, graph: Path) -> None:
    """One token without a past, through the same binding as parity's."""
    model = graph_forward.GraphModel(session, bindings.bind(read_graph(str(graph)), masked=False))
    ids = torch.from_numpy(np.array([[3]], np.int64))
    model.logits(Batch(ids, torch.ones_like(ids)))


def _free(provider: str) -> int:
    """Bytes that the device has free; on a CPU, less what this process holds."""
    if provider == STANDIN:
        return free_bytes()
    if provider == "cuda":
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return -1024 * (int(lines["RssAnon"].split()[0]) + int(lines["RssFile"].split()[0]))
