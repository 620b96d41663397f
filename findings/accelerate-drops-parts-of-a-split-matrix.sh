#!/usr/bin/env bash
# accelerate 1.15.0: a matrix that was split into three loses two parts in each checkpoint.
#
# A model takes its q, k and v weights from one fused matrix with `chunk(3)`, as code that converts checkpoints does. The
# three parameters share no value, but they are parts of one storage. `Accelerator.save_model` and
# `Accelerator.save_state` compare storages alone. They take the three for one tied parameter, and save the first that
# they meet. A line says "Removed shared tensor ... This should be OK". `load_checkpoint_in_model` then reads the file into
# a new model without a word, and k and v stay random. `save_pretrained` of transformers 5.24.0 and `torch.save` store all
# three; `save_model` of safetensors refuses. Issue 28630 of transformers reported this of transformers 4.36. Seen with
# accelerate 1.15.0, safetensors 0.8.0 and torch 2.13.0:
#   save_model stored: q
#   save_state stored: q
#   load_checkpoint_in_model raised nothing; loaded equal to saved: q True, k False, v False
# So clone each part before it becomes a parameter.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0 safetensors==0.8.0 2>/dev/null
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
from accelerate import Accelerator, load_checkpoint_in_model
from safetensors import safe_open

work = sys.argv[1]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        fused = torch.randn(24, 8)
        for name, part in zip("qkv", fused.chunk(3)):
            self.add_module(name, torch.nn.Linear(8, 8, bias=False))
            self.get_submodule(name).weight = torch.nn.Parameter(part)


accelerator = Accelerator(cpu=True)
model = accelerator.prepare(Attention())
accelerator.save_model(model, f"{work}/model")
accelerator.save_state(f"{work}/state")
stored = {}
for name in ("model", "state"):
    with safe_open(f"{work}/{name}/model.safetensors", "pt") as file:
        stored[name] = [key.removesuffix(".weight") for key in file.keys()]
    print(f"save_{name} stored:", *stored[name])
loaded = Attention()
load_checkpoint_in_model(loaded, f"{work}/model")
same = [loaded.get_submodule(name).weight.equal(model.get_submodule(name).weight) for name in "qkv"]
pairs = ", ".join(f"{name} {equal}" for name, equal in zip("qkv", same))
print("load_checkpoint_in_model raised nothing; loaded equal to saved:", pairs)
sys.exit(not (len(stored["model"]) == len(stored["state"]) == sum(same) == 1))
PY
