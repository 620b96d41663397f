"""Disk, memory, latency and cost of one Llama in each form and by other exporters, for docs/export.md.

python -m tests.onnx.whole_model --write [--optimum PYTHON] [--genai PYTHON] [--olive PYTHON] [--only ROW ...]

``--optimum``, ``--genai`` and ``--olive`` name interpreters that have optimum-onnx, onnxruntime-genai and olive-ai.
Without them, and with ``--only``, the missing rows keep the figures of an earlier run. Everything runs with one
thread, alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
from tokenizers import Tokenizer, models

from tests.lazy import torch, transformers as tr
from tests.onnx.export_table import OPTIMUM, committed, write
from tests.onnx.head_forms import _resident, session

CONFIG: dict[str, Any] = {
    "vocab_size": 128_000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 10,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SIZES = {"V": CONFIG["vocab_size"], "H": CONFIG["hidden_size"], "layers": CONFIG["num_hidden_layers"]}
WIDTH = CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
"""Of an attention head; onnxruntime-genai's graphs leave that axis open."""
LENGTHS = (1, 8, 64, 256)
PAST = 64
"""Tokens in the cache of the run with one token."""
RUNS = 7
TIECONV = {
    "tieconv": (),
    "tieconv --fuse cpu": ("--fuse", "cpu"),
    "tieconv --fuse cuda": ("--fuse", "cuda"),
    "tieconv --head-form transpose": ("--head-form", "transpose"),
    "tieconv --quantise int8": ("--quantise", "int8"),
    "tieconv --quantise int4": ("--quantise", "int4"),
    "tieconv --quantise dynamic-int8": ("--quantise", "dynamic-int8"),
}
TRANSFORMERS = """
import sys, transformers
from pathlib import Path
from tests.onnx.exported import export
export(transformers.LlamaForCausalLM.from_pretrained(sys.argv[1]).eval(), Path(sys.argv[2]))
"""
TRACED = "transformers"
QUANTIZE_DYNAMIC = """
import sys
from pathlib import Path
from onnxruntime.quantization import quantize_dynamic
Path(sys.argv[2]).mkdir()
quantize_dynamic(sys.argv[1], sys.argv[2] + "/model.onnx", use_external_data_format=True)
"""


def make(folder: Path) -> Path:
    """The model, and a tokenizer of one word, which genai's builder asks for."""
    torch.manual_seed(0)
    tr.LlamaForCausalLM(tr.LlamaConfig(**CONFIG)).save_pretrained(folder)
    words: Any = Tokenizer(models.WordLevel({"a": 0}, "a"))
    tr.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def commands(
    model: Path, folder: Path, optimum: str | None, genai: str | None, olive: str | None
) -> dict[str, list[str]]:
    """The command of each export, by the name of its row, which is also its folder below ``folder``."""
    python, source = sys.executable, str(model)
    found = {
        name: [python, "-m", "tieconv", "export", source, "-o", str(folder / name), "--no-parity", *options]
        for name, options in TIECONV.items()
    }
    found[TRACED] = [python, "-c", TRANSFORMERS, source, str(folder / TRACED)]
    dynamic = f"{TRACED}, then quantize_dynamic"
    found[dynamic] = [python, "-c", QUANTIZE_DYNAMIC, str(folder / TRACED / "model.onnx"), str(folder / dynamic)]
    if olive:
        capture = ["capture-onnx-graph", "-m", source, "--use_dynamo_exporter", "--disable_telemetry"]
        found["Olive"] = [str(Path(olive).with_name("olive")), *capture, "-o", str(folder / "Olive")]
    if optimum:
        found["optimum"] = [optimum, "-c", OPTIMUM, source, str(folder / "optimum"), "text-generation-with-past"]
    if genai:
        builder = [genai, "-m", "onnxruntime_genai.models.builder", "-i", source, "-e", "cpu"]
        for name, precision in (("genai", "fp32"), ("genai int4", "int4")):
            found[name] = [*builder, "-o", str(folder / name), "-p", precision, "-c", str(folder / "cache")]
    return found


def cost(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Seconds of processor time and the peak of resident memory (MiB) of a command; it runs in ``folder``."""
    watch = "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=sys.stderr)\n"
    watch += "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    watch += "print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", watch, *command], capture_output=True, text=True, env=environment, cwd=folder
    )
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
            made[value.name] = np.zeros((1, CONFIG["num_key_value_heads"], past, WIDTH), np.float32)
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


def measure(programs: dict[str, str | None], only: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each exporter: bytes of graph and data, cost of the export, memory and latency of a session."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make(folder / "model")
        for row, command in commands(model, folder, **programs).items():
            if only and row not in only:
                continue
            spent = cost(command, folder)
            graph = graph_of(folder / row)
            disk = sum(path.stat().st_size for path in graph.parent.iterdir() if ".onnx" in path.name)
            rows.append({"name": row, "disk": disk, **spent, **held(graph)})
            print(json.dumps(rows[-1]), flush=True)
            if row != TRACED:  # a quantiser reads this one
                shutil.rmtree(graph.parent)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    for program in ("optimum", "genai", "olive"):
        parser.add_argument(f"--{program}")
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    programs = {"optimum": given.optimum, "genai": given.genai, "olive": given.olive}
    fresh = {row["name"]: row for row in measure(programs, given.only)}
    if given.write:
        known = [row["name"] for row in committed().get("whole", ())]
        rows = {row["name"]: row for row in committed().get("whole", ())} | fresh
        write(whole=[rows[name] for name in dict.fromkeys((*known, *fresh))], whole_model=SIZES)


if __name__ == "__main__":
    main()
