#!/usr/bin/env bash
# loralib 0.1.2: with LoRA on a tied embedding, a model computes one thing in train mode and another in eval mode.
#
# `lora.Embedding` keeps the matrix of the base model, and adds a low-rank part to what it looks up. `model.eval()`
# merges that part into the matrix in place, and `model.train()` takes it out again. A tied head is that matrix. So the
# head multiplies by the base model's matrix in train mode, and by the merged one in eval mode. Without dropout, the
# loss of one batch is still another in the two modes. Generation uses a head that was never trained. An untied model
# with equal numbers computes the same in both modes. So does a tied one with merge_weights=False. Nothing is raised or
# warned. The README of loralib describes the merge and the option to turn it off. It says that the merge "eliminates
# additional latency", and mentions no change of outputs. No public issue was found. Seen with loralib 0.1.2 and torch
# 2.13.0; the losses change a little between machines:
#   untied: loss in train mode 0.00, in eval mode 0.00
#   tied: loss in train mode 0.00, in eval mode 0.70
#   tied, merge_weights=False: loss in train mode 0.00, in eval mode 0.00
#   tied: head as in the base model: in train mode True, in eval mode False
# So give LoRA layers that share a matrix merge_weights=False.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 loralib==0.1.2 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import sys

import loralib
import torch
from torch import nn

ROWS, WIDTH = 60, 32
ids = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).reshape(4, 15)


class Model(nn.Module):
    def __init__(self, tied, **options):
        super().__init__()
        torch.manual_seed(0)
        self.embed = loralib.Embedding(ROWS, WIDTH, r=8, **options)
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.embed.weight if tied else nn.Parameter(self.embed.weight.data.clone())
        self.embed.weight.requires_grad = self.head.weight.requires_grad = False

    def forward(self, tokens):
        state = self.embed(tokens)
        return self.head(state + torch.relu(self.layer(state)))


def loss(model):
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def measure(title, tied, **options):
    """The losses in both modes after training, and whether the head is the base model's in each mode."""
    model = Model(tied, **options)
    base = model.head.weight.clone()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    losses, heads = [], []
    with torch.no_grad():
        for mode in (model.train, model.eval):
            mode()
            losses.append(loss(model).item())
            heads.append(model.head.weight.allclose(base, atol=1e-5))
    print("{}: loss in train mode {:.2f}, in eval mode {:.2f}".format(title, *losses))
    return losses, heads


untied, heads = measure("untied", False)
tied, moved = measure("tied", True)
apart, _ = measure("tied, merge_weights=False", True, merge_weights=False)
print("tied: head as in the base model: in train mode {}, in eval mode {}".format(*moved))
right = all(abs(train - test) < 0.02 for train, test in (untied, apart)) and heads == [True, True]
sys.exit(not (right and moved == [True, False] and tied[1] > tied[0] + 0.5))
PY
