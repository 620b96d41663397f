"""x-transformers and Whisper: models with names of their own, saved with `torch.save`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.writers.program import PROMPT, Case, Facts, serve

TOOL, FILE = sys.argv[1], "model.pt"
ROWS = 128


def x_transformers(tied: bool) -> Any:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16)
    return TransformerWrapper(num_tokens=ROWS, max_seq_len=64, tie_embedding=tied, attn_layers=layers)


def whisper(tied: bool) -> Any:
    import whisper.model as model

    sizes = {"n_mels": 8, "n_audio_ctx": 16, "n_audio_state": 64, "n_audio_head": 4, "n_audio_layer": 1,
             "n_vocab": ROWS, "n_text_ctx": 16, "n_text_state": 64, "n_text_head": 4, "n_text_layer": 1}  # fmt: skip
    return model.Whisper(model.ModelDimensions(**sizes))


MODELS = {"x-transformers": x_transformers, "whisper": whisper}


def build(tied: bool) -> Any:
    torch.manual_seed(0)
    model = MODELS[TOOL](tied)
    return model.eval()


def write(tied: bool, trained: bool, folder: Path) -> Facts:
    model = build(tied)
    state: Any = model.state_dict()
    if TOOL == "whisper":
        state = {"dims": vars(model.dims), "model_state_dict": state}
    elif trained:
        state = {"model": state, "epoch": 1}
    torch.save(state, folder / FILE)
    return {"tied": tied}


def read(tied: bool, file: Path) -> Any:
    state = torch.load(file, weights_only=True)
    model = build(tied)
    model.load_state_dict(state.get("model_state_dict", state.get("model", state)))
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        made = model.decoder(ids, torch.ones(1, 16, 64)) if TOOL == "whisper" else model(ids)
    return made[0, -1].numpy()


def cases() -> Iterator[Case]:
    for tied in (True, False)[: 1 if TOOL == "whisper" else 2]:
        for trained in (False, True)[: 1 if TOOL == "whisper" else 2]:
            title = f"{'tied' if tied else 'untied'}{' in training' if trained else ''}"
            yield Case(title, partial(write, tied, trained), partial(read, tied), reads=("torch",), file=FILE)


if __name__ == "__main__":
    serve(cases())
