"""The writers: the environment that each needs, its program, and the programs that cannot be installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.oracles.environments import ENVIRONMENTS as LOADERS
from tests.oracles.environments import TORCH, Environment

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
