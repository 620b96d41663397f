#!/usr/bin/env bash
# torch 2.13.0: prune.remove, which only makes pruning permanent, changes the outputs of a tied model.
#
# `prune.l1_unstructured` sets the smallest values of an embedding to zero. The embedding then computes with zeros, and
# the tied head does not: it still reads the unpruned parameter. `prune.remove` writes the zeros into that parameter. By
# its documentation it removes "the pruning reparameterization", and "the pruned parameter remains permanently pruned". So
# it should keep the outputs, and here it prunes the head too. All measuring and fine-tuning before that call is done with
# another model than the one that is saved. No warning comes, and no public issue was found. Seen with torch 2.13.0:
#   after pruning: zeros in the embedding 50 %, in the head 0 %
#   after remove: zeros in the embedding 50 %, in the head 50 %
#   remove keeps the outputs: untied True, tied False
# So call remove right after pruning, before anything is measured.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY'
import sys

import torch
from torch.nn.utils import prune


def zeros(model):
    return [round(100 * (part.weight == 0).float().mean().item()) for part in model]


torch.manual_seed(0)
ids, kept, counts = torch.arange(10), {}, []
for tied in (False, True):
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False))
    if tied:
        model[1].weight = model[0].weight
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    before = model(ids)
    counts.append(zeros(model))
    prune.remove(model[0], "weight")
    counts.append(zeros(model))
    kept[tied] = model(ids).equal(before)
for step, (embedding, head) in zip(("pruning", "remove"), counts[2:]):
    print(f"after {step}: zeros in the embedding {embedding} %, in the head {head} %")
print(f"remove keeps the outputs: untied {kept[False]}, tied {kept[True]}")
sys.exit((counts[2:], kept) != ([[50, 0], [50, 50]], {False: True, True: False}))
PY
