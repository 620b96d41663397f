#!/usr/bin/env bash
# torch 2.13.0: one integer in a state dict spoils the whole Hugging Face checkpoint, and the save reports success.
#
# `torch.distributed.checkpoint.save` with a HuggingFaceStorageWriter gets a model and the number of the training step.
# The default writer saves and loads such a state. The Hugging Face writer puts the pickled integer at the start of
# model-00001-of-00001.safetensors and the tensors behind it. No reader of safetensors can open that file, its own
# HuggingFaceStorageReader included. The call returns normally, and the index file lists every name. So the loss is seen
# when the checkpoint is needed. The documentation of the writer does not say that a state may only hold tensors. No
# public issue was found. Seen with torch 2.13.0 and safetensors 0.8.0:
#   tensors only: the save returns, the file opens: True
#   tensors and a step: the save returns, the index lists embed.weight head.weight step
#   tensors and a step: the file opens: False, it starts with b'PK\x03\x04', its tensors start at byte 1261
#   tensors and a step, default writer: loads True
# So save the step elsewhere, and open the file while the model is still in memory.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 safetensors==0.8.0 numpy 2>/dev/null
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import json
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load


def save(name, state):
    folder = Path(sys.argv[1]) / name
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(folder)))
    return (folder / "model-00001-of-00001.safetensors").read_bytes(), folder / "model.safetensors.index.json"


def opens(content):
    try:
        return sorted(load(content)) == sorted(weights)
    except SafetensorError:
        return False


weights = {"embed.weight": torch.ones(1000, 8), "head.weight": torch.ones(250, 8)}
good, _ = save("tensors", weights)
print("tensors only: the save returns, the file opens:", opens(good))
bad, index = save("step", {**weights, "step": 3})
print("tensors and a step: the save returns, the index lists", *sorted(json.loads(index.read_text())["weight_map"]))
start = len(bad) - len(good)
print(f"tensors and a step: the file opens: {opens(bad)}, it starts with {bad[:4]}, its tensors start at byte {start}")
dcp.save({**weights, "step": 3}, checkpoint_id=f"{sys.argv[1]}/default")
state = {name: torch.zeros_like(tensor) for name, tensor in weights.items()} | {"step": 0}
dcp.load(state, checkpoint_id=f"{sys.argv[1]}/default")
loads = state["step"] == 3 and all(state[name].equal(weights[name]) for name in weights)
print("tensors and a step, default writer: loads", loads)
sys.exit((opens(good), opens(bad), opens(bad[start:]), loads) != (True, False, True, True))
PY
