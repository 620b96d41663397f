"""Disk, memory, latency and cost of one Llama in each form and by other exporters, for docs/export.md.

python -m tests.onnx.whole_model --write [--optimum PYTHON] [--genai PYTHON]

``--optimum`` and ``--genai`` name interpreters that have optimum-onnx and onnxruntime-genai. Without them, these rows
keep the figures of an earlier run. Everything runs with one thread, alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers as tr
from tokenizers import Tokenizer, models

from tests.onnx.export_table import OPTIMUM, committed, write
from tests.onnx.head_forms import _resident, session

CONFIG = {
    "vocab_size": 64_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LENGTHS = (1, 8, 64, 256)
PAST = 64
"""Tokens in the cache of the run with one token."""
RUNS = 7
TIECONV = {
    "tieconv": (),
    "tieconv --fuse cpu": ("--fuse", "cpu"),
    "tieconv --fuse cuda": ("--fuse", "cuda"),
    "tieconv --head-form transpose": ("--head-form", "transpose"),
}
TRANSFORMERS = """
import sys, transformers
from pathlib import Path
from tests.onnx.exported import export
export(transformers.LlamaForCausalLM.from_pretrained(sys.argv[1]).eval(), Path(sys.argv[2]))
"""


def make(folder: Path) -> Path:
    """The model, and a tokenizer of one word, which genai's builder asks for."""
    torch.manual_seed(0)
    tr.LlamaForCausalLM(tr.LlamaConfig(**CONFIG)).save_pretrained(folder)
    words: Any = Tokenizer(models.WordLevel({"a": 0}, "a"))
    tr.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def commands(model: Path, folder: Path, optimum: str | None, genai: str | None) -> dict[str, list[str]]:
    """The command of each export, by the name of its row; each writes a folder of its own below ``folder``."""
    python, out = sys.executable, str(folder)
    found = {
        name: [python, "-m", "tieconv", "export", str(model), "-o", f"{out}/{number}", "--no-parity", *options]
        for number, (name, options) in enumerate(TIECONV.items())
    }
    found["transformers"] = [python, "-c", TRANSFORMERS, str(model), f"{out}/transformers"]
    if optimum:
        found["optimum"] = [optimum, "-c", OPTIMUM, str(model), f"{out}/optimum", "text-generation-with-past"]
    if genai:
        builder = [genai, "-m", "onnxruntime_genai.models.builder", "-i", str(model), "-o", f"{out}/genai"]
        found["genai"] = [*builder, "-p", "fp32", "-e", "cpu", "-c", str(folder / "cache")]
    return found


def cost(command: Sequence[str]) -> dict[str, float]:
    """Seconds of processor time and the peak of resident memory (MiB) of a command."""
    watch = "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=sys.stderr)\n"
    watch += "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    watch += "print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", watch, *command], capture_output=True, text=True, env=environment)
    code, seconds, peak = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"{command[:4]} failed: {done.stderr[-2000:]}")
    return {"seconds": round(seconds, 1), "peak": peak}


def feeds(path: Path, length: int, past: int) -> dict[str, np.ndarray]:
    """One row of ``length`` tokens after a cache of ``past`` zeros, whatever the exporter calls its inputs."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    made: dict[str, np.ndarray] = {}
    for value in graph.input:
        if value.name in stored:
            continue
        if value.name == "input_ids":
            made[value.name] = np.random.default_rng(length).integers(0, CONFIG["vocab_size"], (1, length))
        elif value.name == "attention_mask":
            made[value.name] = np.ones((1, past + length), np.int64)
        elif value.name == "position_ids":
            made[value.name] = np.arange(past, past + length)[None]
        else:
            _, heads, _, width = (side.dim_value for side in value.type.tensor_type.shape.dim)
            made[value.name] = np.zeros((1, heads, past, width), np.float32)
    return made


def held(path: Path) -> dict[str, Any]:
    """Resident memory (MiB) of a session after a run, and the median processor time (ms) of each length."""
    code = f"from tests.onnx.whole_model import _held; _held({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _held(path: str) -> None:
    inputs = {length: feeds(Path(path), length, PAST if length == 1 else 0) for length in LENGTHS}
    before = _resident()
    made = session(Path(path), prepack=True)
    made.run(None, inputs[1])
    after = _resident()
    times: dict[str, float] = {}
    for length in LENGTHS:
        runs = []
        for _ in range(RUNS):
            start = time.process_time()
            made.run(None, inputs[length])
            runs.append(time.process_time() - start)
        times[str(length)] = round(1000 * statistics.median(runs), 1)
    print(json.dumps({**{key: (after[key] - before[key]) // 1024 for key in after}, "milliseconds": times}))


def graph_of(folder: Path) -> Path:
    """The graph in a folder, and never more than one."""
    (graph,) = folder.glob("*.onnx")
    return graph


def measure(optimum: str | None = None, genai: str | None = None) -> list[dict[str, Any]]:
    """A row for each exporter: bytes of graph and data, cost of the export, memory and latency of a session."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make(folder / "model")
        for number, (row, command) in enumerate(commands(model, folder, optimum, genai).items()):
            spent = cost(command)
            graph = graph_of(folder / (str(number) if row in TIECONV else row))
            disk = sum(path.stat().st_size for path in graph.parent.iterdir() if ".onnx" in path.name)
            rows.append({"name": row, "disk": disk, **spent, **held(graph)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--optimum")
    parser.add_argument("--genai")
    given = parser.parse_args()
    rows = measure(given.optimum, given.genai)
    if given.write:
        fresh = {row["name"] for row in rows}
        write(whole=[*rows, *(row for row in committed().get("whole", ()) if row["name"] not in fresh)])


if __name__ == "__main__":
    main()
