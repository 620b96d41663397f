#!/usr/bin/env bash
# x-transformers 2.31.10: a copy of a tied model multiplies by the embedding of the model that it was copied from.
#
# `TransformerWrapper` with tie_embedding=True has no layer for the head. Its head is a lambda that reads the embedding
# of the model that made it. `copy.deepcopy` copies all parameters, and a function it leaves as it is. So the copy looks
# tokens up in its own embedding, and takes its logits from that of the original. A moving average of the weights is
# such a copy, in ema-pytorch of the same author and in `AveragedModel` of torch. Its logits come from averaged layers
# and a head that is not averaged. Its state dict holds the averaged embedding. Who loads that computes something else
# than was measured. A copy that is kept before further training changes with the training. A clone that is trained
# itself leaves its head behind, and sends a part of its gradients to the original. An untied model is right. Nothing is
# raised or warned. `torch.save` of a whole tied model raises an error about the lambda. The README of x-transformers
# does not mention copies where it was searched, and no public issue was found. Seen with x-transformers 2.31.10,
# ema-pytorch 0.8.3 and torch 2.13.0. The distances are those of logits by their norm, and change a little between
# machines:
#   untied: a copy before and after training of the original 0.00
#   untied: measured and loaded again: EMA 0.00, AveragedModel 0.00
#   untied: training of a copy sends gradients to 0 parameters of the original
#   tied: a copy before and after training of the original 1.13
#   tied: measured and loaded again: EMA 0.15, AveragedModel 0.16
#   tied: training of a copy sends gradients to 1 parameters of the original
# So load the state dict of a copy into a new model before it is measured, and train no copy.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 x-transformers==2.31.10 ema-pytorch==0.8.3 \
  2>/dev/null
"$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import copy
import sys

import torch
from ema_pytorch import EMA
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from x_transformers import Decoder, TransformerWrapper

texts = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(0))


def make(tied):
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=2, heads=2)
    return TransformerWrapper(num_tokens=64, max_seq_len=16, attn_layers=layers, tie_embedding=tied)


def loss(model):
    return cross_entropy(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])


@torch.no_grad()
def logits(model):
    return model.eval()(texts)


def distance(first, second):
    return round(((first - second).norm() / second.norm()).item(), 2)


def measure(tied):
    model = make(tied)
    before = copy.deepcopy(model)
    logits_before = logits(before)
    averages = {
        "EMA": EMA(model, beta=0.9, update_after_step=0, update_every=1),
        "AveragedModel": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss(model.train()).backward()
        optimizer.step()
        averages["EMA"].update()
        averages["AveragedModel"].update_parameters(model)
    changed = distance(logits(before), logits_before)
    loaded = []
    for average in (averages["EMA"].ema_model, averages["AveragedModel"].module):
        released = make(tied)
        released.load_state_dict(average.state_dict())
        loaded.append(distance(logits(average), logits(released)))
    optimizer.zero_grad()
    loss(copy.deepcopy(model).train()).backward()
    return changed, loaded, sum(parameter.grad is not None for parameter in model.parameters())


seen = {}
for name, tied in {"untied": False, "tied": True}.items():
    seen[name] = changed, loaded, reached = measure(tied)
    print(f"{name}: a copy before and after training of the original {changed:.2f}")
    print(f"{name}: measured and loaded again: EMA {loaded[0]:.2f}, AveragedModel {loaded[1]:.2f}")
    print(f"{name}: training of a copy sends gradients to {reached} parameters of the original")
changed, loaded, reached = seen["tied"]
sys.exit(seen["untied"] != (0, [0, 0], 0) or min(changed, *loaded) < 0.05 or reached != 1)
PY
