"""The writers' environments and programs, and what each case of a writer gives."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracles.environments import ENVIRONMENTS as LOADERS, TORCH, Environment
from tests.oracles.measure import SCRIPTS, Runner
from tests.writers.judge import ANNOUNCED, NOTHING, REFUSED, RIGHT, UNKNOWN, WRONG, Cell, judge

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "measured" / "writers"
COUNTED = (RIGHT, NOTHING, ANNOUNCED, UNKNOWN, REFUSED)
Judged = dict[str, list[Cell]]


def cells(name: str, python: str, only: str = "", every: int = 1) -> Iterator[tuple[str, list[Cell]]]:
    """Yield each case of writer ``name`` with its cells. ``only``: cases whose names contain it."""
    SCRIPTS[name] = str(PROGRAMS / f"{WRITERS[name].script}.py")
    runner = Runner(
        name, python, {"PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}, name
    )
    listed = runner.observe({"id": name, "do": "list"})
    if "cases" not in listed:
        raise SystemExit(f"{name}: {listed['why']}")
    chosen = [title for title in listed["cases"] if only in title][::every]
    for title in chosen:
        case = listed["cases"][title]
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)

            def ask(do: str, path: Path, case_name: str = title) -> dict[str, Any]:
                return runner.observe({"id": case_name, "do": do, "case": case_name, "path": str(path)})

            folder = work / "model"
            made = ask("write", folder)
            if "facts" not in made:
                yield title, [Cell("write", WRONG, f"the program does not write it: {made['why']}")]
                continue
            model = folder / case["file"] if case["file"] else folder
            yield title, list(judge(model, made["facts"], case, lambda path: ask("load", path), work))
    runner.close()


def figures(versions: dict[str, str], judged: Judged) -> dict[str, Any]:
    """Return the figures of a writer as they are kept: counts, the wrong cells, refusals and notes by their text."""
    flat = [(title, cell) for title, made in judged.items() for cell in made]
    refused = Counter(f"{cell.question}: {cell.why}" for _, cell in flat if cell.outcome == "refused")
    notes = Counter(
        note for _, cell in flat if cell.question == "check" for note in cell.why.split() if cell.outcome == RIGHT
    )
    return {
        "versions": versions,
        "files": len(judged),
        **{outcome: sum(cell.outcome == outcome for _, cell in flat) for outcome in COUNTED},
        "wrong": [f"{title}: {cell.question}: {cell.why}" for title, cell in flat if cell.outcome == WRONG],
        "refusals": dict(refused.most_common()),
        "notes": dict(notes.most_common()),
    }


def new_faults(name: str, found: dict[str, Any]) -> list[str]:
    """Return the wrong cells that the kept figures of the writer do not list."""
    path = FIGURES / f"{name}.json"
    listed = json.loads(path.read_text(encoding="utf-8"))["wrong"] if path.exists() else []
    return [line for line in found["wrong"] if line not in listed]


def keep(name: str, found: dict[str, Any]) -> Path:
    """Write the figures of a writer; return their file."""
    FIGURES.mkdir(exist_ok=True)
    path = FIGURES / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


PROGRAMS = Path(__file__).parent / "programs"


SAFETENSORS = "safetensors==0.8.0"
"""Readers of results need it, also those of programs that do not install it."""


def _environment(*packages: str, show: tuple[str, ...], alone: tuple[str, ...] = ()) -> Environment:
    return Environment("writer", (TORCH, SAFETENSORS, *packages), alone=alone, show=(*show, "torch"))


ENVIRONMENTS: dict[str, Environment] = {
    "transformers-5.23": _environment(
        "transformers==5.23.0", "accelerate==1.15.0", "peft==0.21.2", "huggingface_hub==2.4.0",
        show=("transformers", "safetensors"),
    ),
    "llama.cpp": LOADERS["llama.cpp"],
    "mlx-lm": _environment("mlx[cpu]", "mlx-lm==0.32.2", "transformers==5.24.0", show=("mlx-lm", "mlx")),
    "mlx-vlm": _environment(
        "mlx[cpu]", "mlx-vlm==0.7.10", "transformers==5.24.0", show=("mlx-vlm", "mlx", "transformers")
    ),
    "quantisers": _environment(
        "transformers==5.23.0", "accelerate==1.15.0", "torchao==0.18.0", "optimum-quanto==0.2.7",
        "hqq==0.2.8.post1", "bitsandbytes==0.50.2", "gguf==0.19.0", "sentencepiece",
        show=("torchao", "optimum-quanto", "hqq", "bitsandbytes", "transformers"),
    ),
    "lightning": _environment("transformers==5.23.0", "lightning==2.6.6", show=("lightning", "transformers")),
    **{
        f"transformers-{version[:4]}": _environment(
            f"transformers=={version}", "accelerate==1.15.0", show=("transformers", "safetensors")
        )
        for version in ("4.57.6", "5.24.0")
    },
    "llm-compressor": Environment(
        "writer",
        ("llmcompressor==0.11.0", "transformers==4.57.6"),
        show=("llmcompressor", "compressed-tensors", "torch"),
    ),  # it needs an older torch
    "modelopt": _environment(
        "nvidia-modelopt==0.47.0", "requests", "transformers==5.23.0", show=("nvidia-modelopt", "transformers")
    ),
    "x-transformers": _environment("x-transformers==2.31.10", show=("x-transformers",)),
    "whisper": _environment("openai-whisper==20250625", show=("openai-whisper",)),
    "fastai": _environment("fastai==2.8.12", show=("fastai",)),
    "olmo": _environment("ai2-olmo==0.6.0", "datasets==4.7.0", "pyarrow==21.0.0", show=("ai2-olmo",)),  # numpy 1
    "trl": _environment("trl==0.24.0", "transformers==4.57.6", "accelerate==1.15.0", show=("trl", "transformers")),
    "deepspeed": _environment("deepspeed==0.19.8", "transformers==5.23.0", show=("deepspeed", "transformers")),
    "adapters": _environment("adapters==1.3.0", show=("adapters", "transformers")),
    "optimum-onnx": _environment(
        "transformers==4.57.6", "optimum-onnx==0.1.0", "onnx==1.23.2", "onnxruntime==1.32.0",
        show=("optimum-onnx", "onnxruntime", "transformers"),
    ),
    "onnx": _environment(
        "transformers==5.23.0", "onnx==1.23.2", "onnxruntime==1.32.0", "onnxscript", "onnx-ir==1.1.0",
        "onnxslim==0.1.98", "onnxsim==0.8.1", show=("onnxslim", "onnxsim", "onnxscript", "transformers"),
    ),
    "onnxruntime-genai": _environment(
        "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx-ir==1.1.0", "transformers==5.23.0",
        show=("onnxruntime-genai", "transformers"),
    ),
    "opennmt-py": Environment("writer", ("OpenNMT-py==3.5.1", "numpy<2", SAFETENSORS), show=("OpenNMT-py", "torch")),
    "litgpt": _environment("litgpt==0.5.13", show=("litgpt",)),
    "mergekit": _environment("mergekit==0.1.5", "transformers==5.24.0", show=("mergekit", "transformers")),
    "sentence-transformers": _environment(
        "transformers==5.23.0", "sentence-transformers==6.2.0", show=("sentence-transformers", "transformers")
    ),
}  # fmt: skip


OWN_FORMATS = ("x-transformers", "whisper", "fastai", "olmo", "opennmt-py")


@dataclass(frozen=True)
class Writer:
    """A program that writes checkpoints: its environment, and its script in programs/."""

    environment: str
    script: str
    show: tuple[str, ...] = ()
    """The packages that the page names, if they are not those of the environment."""


WRITERS = {
    "transformers-5.23": Writer("transformers-5.23", "save_transformers"),
    **{
        f"transformers-{version}": Writer(f"transformers-{version}", "save_transformers")
        for version in ("4.57", "5.24")
    },
    "libraries": Writer("transformers-5.23", "save_libraries", ("safetensors", "huggingface_hub", "accelerate")),
    "mlx-lm": Writer("mlx-lm", "convert_mlx"),
    "mlx-vlm": Writer("mlx-vlm", "convert_mlx_vlm"),
    "quantisers": Writer("quantisers", "quantise_transformers"),
    "training": Writer("lightning", "save_checkpoints"),
    "gguf": Writer("quantisers", "write_gguf", ("gguf", "transformers")),
    "llama.cpp": Writer("llama.cpp", "convert_llama_cpp"),
    "sentence-transformers": Writer("sentence-transformers", "save_sentence_transformers"),
    "litgpt": Writer("litgpt", "save_litgpt"),
    "mergekit": Writer("mergekit", "merge_mergekit"),
    **{name: Writer(name, "quantise_calibrated") for name in ("llm-compressor", "modelopt")},
    **{name: Writer(name, "save_own_format") for name in OWN_FORMATS},
    **{name: Writer(name, "save_trainers") for name in ("trl", "deepspeed", "adapters")},
    **{name: Writer(name, "write_onnx") for name in ("optimum-onnx", "onnxruntime-genai")},
    "torch-onnx": Writer("onnx", "write_onnx"),
    "onnxruntime": Writer("onnx", "write_onnx", ("onnxruntime", "onnxscript", "transformers")),
    "peft": Writer("transformers-5.23", "save_peft", ("peft", "transformers")),
}

NOT_INSTALLED: dict[str, str] = {
    "AutoRound 0.16.1": "it installs; without the calibration set that it downloads, our run did not end",
    "GPTQModel 7.7.0": "it installs; on two cores, `GPTQModel.load` fails: it asks for two workers and gets one",
    "fairseq 0.12.2": "it does not import on Python 3.11 or newer: `mutable default` of a dataclass",
    "CTranslate2 4.8.5": "it writes a format that tieconv only recognises; it is judged as a loader",
    "torchtitan 0.3.0": "its models import triton, which the CPU build of torch does not install",
    "transformers 4.48.3": "the small models of our fixtures need 4.56 or newer",
    "torchtune 0.6.1": "it does not import with torch 2.13: it needs a torchao that does not import there",
    "mambapy 1.2.0, mamba-ssm 2.3.2": "mambapy's language model imports mamba-ssm, which needs CUDA to build",
    "SetFit, PyLate, Model2Vec": "not tried: what they write is an encoder without a language model's head",
    "KerasHub 0.32.0": "not tried: it installs with TensorFlow; its exports would be transformers' layout",
    "flair 0.15.1": "not tried: it pickles its language model, and no other program reads the file",
    "transformers.js' scripts": "not tried: they are not in a package; they call the exporters of the table",
}
"""Programs without a script, and why."""
