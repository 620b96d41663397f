#!/usr/bin/env bash
# torch 2.13.0: a checkpoint without frozen parameters holds a frozen tied matrix, and replaces that of the next model.
#
# `StateDictOptions(ignore_frozen_params=True)` is made for fine-tuning with adapters. Its docstring says that the state
# dict "won't contain any frozen parameters". `get_model_state_dict` walks through `named_parameters` to remove the
# frozen ones. That lists a tied matrix once, under the name of the embedding. The state dict has it under two names, so
# the name of the head stays. The checkpoint of an adapter then holds the vocabulary matrix of its base model, which may
# be most of the model. To load it into a base model, one asks that model for its state dict in the same way.
# `torch.distributed.checkpoint.load` fills these tensors in place, and the head is among them. So the matrix of the new
# base is overwritten by that of the old one, for its embedding too. A base with eight more rows cannot be loaded: the
# load raises an exception about sizes. An untied model stores and loads the adapter alone. `fully_shard` changes
# nothing. Nothing is warned. Issue 192202 of PyTorch is about the optimizer states of frozen parameters. No public
# issue about the tied matrix was found. Seen with torch 2.13.0:
#   untied: stored adapter.weight, 4096 numbers
#   untied, into a base of 1000 rows: adapter loaded True, base unchanged True
#   untied, into a base of 1008 rows: adapter loaded True, base unchanged True
#   tied: stored adapter.weight head.weight, 68096 numbers
#   tied, into a base of 1000 rows: adapter loaded True, base unchanged False
#   tied, into a base of 1008 rows: CheckpointException, Size mismatch True
#   tied, with fully_shard: stored adapter.weight head.weight
# So remove the names of the head from the state dict, before the save and before the load.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
"$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

work = sys.argv[1]
options = StateDictOptions(ignore_frozen_params=True, strict=False)


class Model(torch.nn.Module):
    """A frozen base of an embedding and a head, with a trained layer between them."""

    def __init__(self, tied, rows=1000):
        super().__init__()
        self.embed = torch.nn.Embedding(rows, 64)
        self.adapter = torch.nn.Linear(64, 64, bias=False)
        self.head = torch.nn.Linear(64, rows, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.embed.requires_grad_(False)
        self.head.requires_grad_(False)


def load_into(base, checkpoint):
    """Load an adapter as the documentation of DCP does: into the state dict that the model gives."""
    state = get_model_state_dict(base, options=options)
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    set_model_state_dict(base, state, options=options)


stored, results = [], []
for word, tied in (("untied", False), ("tied", True)):
    torch.manual_seed(0)
    model, checkpoint = Model(tied), f"{work}/{word}"
    state = get_model_state_dict(model, options=options)
    stored.append((sorted(state), sum(tensor.numel() for tensor in state.values())))
    print(f"{word}: stored {' '.join(stored[-1][0])}, {stored[-1][1]} numbers")
    dcp.save(state, checkpoint_id=checkpoint, no_dist=True)
    for rows in (1000, 1008):
        base = Model(tied, rows)
        before = [base.embed.weight.clone(), base.head.weight.clone()]
        try:
            load_into(base, checkpoint)
            same = base.embed.weight.equal(before[0]) and base.head.weight.equal(before[1])
            result = base.adapter.weight.equal(model.adapter.weight), same
            text = f"adapter loaded {result[0]}, base unchanged {result[1]}"
        except dcp.CheckpointException as error:
            result = "Size mismatch" in str(error)
            text = f"CheckpointException, Size mismatch {result}"
        print(f"{word}, into a base of {rows} rows: {text}")
        results.append(result)

dist.init_process_group("gloo", init_method=f"file://{work}/store", rank=0, world_size=1)
model = Model(tied=True)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
sharded = sorted(get_model_state_dict(model, options=options))
print("tied, with fully_shard: stored", " ".join(sharded))
dist.destroy_process_group()

both = ["adapter.weight", "head.weight"]
want = [(["adapter.weight"], 64 * 64), (both, 64 * 64 + 1000 * 64)]
sys.exit((stored, sharded, results) != (want, both, [(True, True), (True, True), (True, False), True]))
PY
