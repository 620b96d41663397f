#!/usr/bin/env bash
# torch 2.13.0: parallelize_module unties a tied model without a word; FSDP2 refuses the same model.
#
# A model has an embedding and a head with one parameter. `parallelize_module` shards both by the usual plan, with
# RowwiseParallel for the embedding and ColwiseParallel for the head. Both give the matrix the same layout: each process
# holds a slice of the vocabulary. But each style makes its own parameter, so the model has two matrices afterwards. They
# are equal at first and differ after the first optimizer step. The checkpoint then holds two different matrices under a
# config that says tied, and a loader keeps one of them. With `fully_shard` the first call of the model raises ValueError,
# which says what to do. The documentation of parallelize_module does not mention tied parameters. Seen with torch 2.13.0,
# in one process:
#   before: parameters 1, one object True
#   after parallelize_module: parameters 2, one object False, equal True
#   after one step: equal False
#   fully_shard of the embedding, then of the model, then a call: ValueError
# So tie again after parallelize_module: head.weight = embed.weight.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
"$work/venv/bin/python" - "$work/store" <<'PY' 2>/dev/null
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def tied_model():
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    return model


def state(model):
    embedding, head = (part.weight for part in model)
    values = [getattr(weight, "full_tensor", lambda weight=weight: weight)() for weight in (embedding, head)]
    return len(list(model.parameters())), embedding is head, values[0].equal(values[1])


model = tied_model()
seen = [state(model)]
print(f"before: parameters {seen[0][0]}, one object {seen[0][1]}")
plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(output_layouts=Replicate())}
parallelize_module(model, mesh, plan)
seen.append(state(model))
print(f"after parallelize_module: parameters {seen[1][0]}, one object {seen[1][1]}, equal {seen[1][2]}")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model(torch.arange(10)).square().sum().backward()
optimizer.step()
seen.append(state(model))
print(f"after one step: equal {seen[2][2]}")
try:
    sharded = tied_model()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)(torch.arange(10))
    refused = "nothing"
except ValueError:
    refused = "ValueError"
print("fully_shard of the embedding, then of the model, then a call:", refused)
dist.destroy_process_group()
sys.exit((seen, refused) != ([(1, True, True), (2, False, True), (2, False, False)], "ValueError"))
PY
