"""litgpt: the state dict of its models, alone and with a training state."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litgpt
import torch

from tests.writers.program import PROMPT, Case, Facts, serve

NAMES = ("Llama-3.2-1B", "pythia-14m", "Qwen2.5-0.5B", "Mistral-7B-v0.1", "phi-2", "falcon-7b")
SIZES = {
    "n_layer": 2, "n_embd": 64, "n_head": 4, "n_query_groups": 4, "head_size": 16, "intermediate_size": 64,
    "padded_vocab_size": 128, "block_size": 64,
}  # fmt: skip


def config(name: str) -> Any:

    return litgpt.Config.from_name(name, **SIZES)


def build(name: str, tied: bool) -> Any:
    torch.manual_seed(0)
    model = litgpt.GPT(config(name))
    if tied:
        model.lm_head.weight = model.transformer.wte.weight
    return model


def write(name: str, tied: bool, trained: bool, folder: Path) -> Facts:
    """Save the state dict as litgpt's commands do: alone, or under `model` with a training state."""
    model = build(name, tied)
    state = model.state_dict()
    torch.save({"model": state, "step_count": 3} if trained else state, folder / "lit_model.pth")
    litgpt.utils.save_config(model.config, folder)
    return {"tied": tied}


def read(name: str, file: Path) -> Any:
    state = torch.load(file, weights_only=True)
    state = state.get("model", state)
    model = build(name, False)
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        return model(torch.tensor([PROMPT]))[0, -1].numpy()


def cases() -> Iterator[Case]:
    for name in NAMES:
        for tied in (True, False):
            for trained in (False, True):
                title = f"{name} {'tied' if tied else 'untied'}{' in training' if trained else ''}"
                yield Case(
                    title, partial(write, name, tied, trained), partial(read, name), reads=("torch",),
                    file="lit_model.pth",
                )  # fmt: skip


if __name__ == "__main__":
    serve(cases())
