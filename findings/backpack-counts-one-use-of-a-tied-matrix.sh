#!/usr/bin/env bash
# backpack-for-pytorch 1.7.1: the gradients per sample of a tied matrix are those of the embedding alone.
#
# BackPACK extends a backward pass by quantities such as the gradient of each sample (BatchGrad) and its norm
# (BatchL2Grad). Each module writes them to its parameter. The head and the embedding of a tied model write to the
# same parameter, and the embedding comes last in a backward pass. So the part of the head is gone. The gradients per
# sample no longer add up to `grad`, which is right. No error or warning comes. A method that clips, weights or
# filters samples by these numbers works with a part of the gradient. Opacus 1.6.0 adds both parts. The documentation
# of BackPACK does not mention tied parameters where it was searched, and no public issue was found. Seen with
# backpack-for-pytorch 1.7.1 and torch 2.13.0:
#   untied: gradients per sample right True, their norms right True, grad right True
#   tied: gradients per sample right False, their norms right False, grad right True
#   tied: gradients per sample equal those of the lookup in an untied model: True
#   tied: share of the norm of the gradient that is left: 0.47
# So check that grad_batch.sum(0) equals grad before these numbers are used.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 backpack-for-pytorch==1.7.1 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import sys

import torch
from backpack import backpack, extend
from backpack.extensions import BatchGrad, BatchL2Grad


def near(one, two):
    return one.allclose(two, atol=1e-4)


def measure(tied):
    """Whether BackPACK's numbers for the embedding's matrix are those of one pass for each sample, and the numbers."""
    torch.manual_seed(0)
    head, table = torch.nn.Linear(8, 20, bias=False), torch.nn.Embedding(20, 8)
    table.weight.data.copy_(head.weight)
    if tied:
        head.weight = table.weight
    model = extend(torch.nn.Sequential(table, torch.nn.Linear(8, 8), head))
    loss = extend(torch.nn.CrossEntropyLoss(reduction="sum"))
    ids, labels = torch.randint(0, 20, (2, 6))
    singles = []
    for row in range(6):
        model.zero_grad()
        loss(model(ids[row : row + 1]), labels[row : row + 1]).backward()
        singles.append(table.weight.grad.clone())
    truth = torch.stack(singles)
    model.zero_grad()
    with backpack(BatchGrad(), BatchL2Grad()):
        loss(model(ids), labels).backward()
    matrix, squares = table.weight, truth.square().flatten(1).sum(1)
    same = near(matrix.grad_batch, truth), near(matrix.batch_l2, squares), near(matrix.grad, truth.sum(0))
    return same, matrix.grad_batch, matrix.grad


(untied, lookup, _), (tied, batch, gradient) = measure(False), measure(True)
for word, same in (("untied", untied), ("tied", tied)):
    print("{}: gradients per sample right {}, their norms right {}, grad right {}".format(word, *same))
print("tied: gradients per sample equal those of the lookup in an untied model:", near(batch, lookup))
share = (batch.sum(0).norm() / gradient.norm()).item()
print(f"tied: share of the norm of the gradient that is left: {share:.2f}")
sys.exit((untied, tied, near(batch, lookup)) != ((True, True, True), (False, False, True), True))
PY
