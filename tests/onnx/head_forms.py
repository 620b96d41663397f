"""Memory and latency of a head in each form, against two stored copies: V = 131072, H = 1024, one thread."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tieconv as api
from tests.lazy import ort
from tests.onnx.nodes import model, op, outside, save, token_ids, value

V, H = 131_072, 1024
LENGTHS = (1, 8, 64)
FORMS = ("two copies", "gemm", "fused", "transpose")


def build(directory: Path) -> Path:
    """`Gather(W)`, `MatMul(x, Wᵀ copy)`: what exporters write that store the matrix twice."""
    directory.mkdir(parents=True)
    matrix = np.random.default_rng(0).standard_normal((V, H), dtype=np.float32)
    stored = []
    with (directory / "model.onnx.data").open("wb") as data:
        for name, array in (("embed", matrix), ("head", np.ascontiguousarray(matrix.T))):
            stored.append(outside(name, array.shape, "model.onnx.data", data.tell(), array.nbytes))
            data.write(array.data)
    nodes = [op("Gather", "embed ids", "x"), op("MatMul", "x head", "logits")]
    save(model(nodes, [token_ids("ids")], [value("logits", ["b", "s", V])], stored), directory / "model.onnx")
    return directory


def session(path: Path, *, prepack: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def memory(path: Path, *, prepack: bool) -> dict[str, int]:
    """MiB of a process that has loaded the graph and run it: its own, and pages of the file."""
    code = f"from tests.onnx.head_forms import _memory; _memory({str(path)!r}, {prepack})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _memory(path: str, prepack: bool) -> None:
    before = _resident()
    made = session(Path(path), prepack=prepack)
    made.run(None, {"ids": np.zeros((1, 1), np.int64)})
    after = _resident()
    print(json.dumps({key: (after[key] - before[key]) // 1024 for key in after}))


def _resident() -> dict[str, int]:
    """KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return {"own": int(found["RssAnon"].split()[0]), "file": int(found["RssFile"].split()[0])}


def latency(paths: dict[str, Path], rounds: int = 9) -> dict[str, dict[str, float]]:
    """Medians of processor time over those of two copies, runs interleaved in one process, one thread."""
    sessions = {form: session(path, prepack=True) for form, path in paths.items()}
    ratios: dict[str, dict[str, float]] = {form: {} for form in paths}
    for length in LENGTHS:
        ids = np.random.default_rng(1).integers(0, V, (1, length))
        times: dict[str, list[float]] = {form: [] for form in paths}
        for _ in range(rounds):
            for form, made in sessions.items():
                start = time.thread_time()
                made.run(None, {"ids": ids})
                times[form].append(time.thread_time() - start)
        base = statistics.median(times[FORMS[0]][2:])
        for form in paths:
            ratios[form][str(length)] = round(statistics.median(times[form][2:]) / base, 2)
    return ratios


def measure(folder: Path) -> list[dict[str, Any]]:
    """A row for each form: disk, memory with and without prepacking (MiB), latency ratios by sequence length."""
    paths = {"two copies": build(folder / "two") / "model.onnx"}
    for form in FORMS[1:]:
        api.plan_graph_dedup(folder / "two", head_form=form).execute(folder / form)
        paths[form] = folder / form / "model.onnx"
    ratios = latency(paths)
    return [
        {
            "form": form,
            "disk": sum(file.stat().st_size for file in path.parent.iterdir()) >> 20,
            "packed": memory(path, prepack=True),
            "unpacked": memory(path, prepack=False),
            "latency": ratios[form],
        }
        for form, path in paths.items()
    ]
