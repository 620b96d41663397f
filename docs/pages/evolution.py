"""The example of `evolution.md`: a constructed run is made, and the block is what the command prints for it."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pages import outputs

STEPS = (0, 1000, 2000, 4000, 8000, 10_000)
_ROWS, _WIDTH = 2000, 64
_COMMAND = 'tieconv analyze run --revisions "$(ls run)"'
_BLOCK = re.compile(r"(<!-- constructed run -->\n)```console\n.*?```", re.DOTALL)


def page(path: Path) -> str:
    """Return the page at ``path`` with its commands run again, and the command for the constructed run."""
    return _BLOCK.sub(lambda match: f"{match[1]}```console\n$ {_COMMAND}\n{_output()}\n```", outputs.page(path))


def _output() -> str:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = make(Path("run"))
        return outputs.printed(["analyze", "run", "--revisions", ",".join(names)])


def make(folder: Path) -> list[str]:
    """Write the run: the head turns towards the first input embedding and grows, the input embedding turns slowly."""
    first, aim, head = (
        np.random.default_rng(seed).standard_normal((_ROWS, _WIDTH), np.float32) * 0.02 for seed in range(3)
    )
    for step in STEPS:
        share = step / STEPS[-1]
        tables = {
            "model.embed_tokens.weight": _turned(first, aim, 0.6 * share) * (1 - 0.3 * share),
            "lm_head.weight": _turned(head, first, 1.45 * share**1.5) * (1 + 2 * share),
        }
        target = folder / f"step{step}"
        target.mkdir(parents=True)
        save_file({name: table.astype(np.float32) for name, table in tables.items()}, target / "model.safetensors")
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
                  "vocab_size": _ROWS, "hidden_size": _WIDTH}  # fmt: skip
        (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return [f"step{step}" for step in STEPS]


def _turned(start: np.ndarray, aim: np.ndarray, angle: float) -> np.ndarray:
    return np.cos(angle) * start + np.sin(angle) * aim
