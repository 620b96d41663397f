"""The writers: the environment that each needs, its program, and the programs that cannot be installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.oracles.environments import TORCH, Environment

PROGRAMS = Path(__file__).parent / "programs"


def _environment(*packages: str, show: tuple[str, ...], alone: tuple[str, ...] = ()) -> Environment:
    return Environment("writer", (TORCH, *packages), alone=alone, show=(*show, "torch"))


ENVIRONMENTS: dict[str, Environment] = {
    "transformers-5.23": _environment(
        "transformers==5.23.0", "accelerate==1.15.0", "peft==0.21.2", "huggingface_hub==2.4.0",
        show=("transformers", "safetensors"),
    ),
    "mlx-lm": _environment("mlx[cpu]", "mlx-lm==0.32.2", "transformers==5.24.0", show=("mlx-lm", "mlx")),
    "quantisers": _environment(
        "transformers==5.23.0", "accelerate==1.15.0", "torchao==0.18.0", "optimum-quanto==0.2.7",
        "hqq==0.2.8.post1", "bitsandbytes==0.50.2", "gguf==0.19.0", "sentencepiece",
        show=("torchao", "optimum-quanto", "hqq", "bitsandbytes", "transformers"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Writer:
    """A program that writes checkpoints: its environment, and its script in programs/."""

    environment: str
    script: str
    show: tuple[str, ...] = ()
    """The packages that the page names, if they are not those of the environment."""


WRITERS = {
    "transformers-5.23": Writer("transformers-5.23", "save_transformers"),
    "libraries": Writer("transformers-5.23", "save_libraries", ("safetensors", "huggingface_hub", "accelerate")),
    "mlx-lm": Writer("mlx-lm", "convert_mlx"),
    "peft": Writer("transformers-5.23", "save_peft", ("peft", "transformers")),
}

NOT_INSTALLED: dict[str, str] = {}
"""Programs that could not run on a CPU-only Linux machine with pip, and why."""
