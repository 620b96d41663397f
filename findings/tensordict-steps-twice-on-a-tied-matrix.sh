#!/usr/bin/env bash
# tensordict 0.15.3: arithmetic on the parameters of a module takes two steps on a tied matrix, and one on the others.
#
# `TensorDict.from_module` holds the parameters of a module, and its in-place methods change all of them with one call.
# It lists a tied matrix under both names, and each entry is the same memory. So a gradient step, or a soft update of a
# target network, reaches the matrix twice. The gradient holds the sum over both uses already, so the step is twice that
# of torch.optim.SGD. A soft update by 0.1 moves the matrix by 0.19. The others are right, and so is each parameter of
# an untied module with equal numbers. Methods that return a new tensordict are right too. Nothing is raised or warned.
# The docstring of from_module does not mention tied parameters, and no public issue was found. Seen with tensordict
# 0.15.3 and torch 2.13.0; the figures are the steps taken, where 1.00 is that of torch.optim.SGD or of the formula:
#   untied, gradient step in place: embedding 1.00, others 1.00
#   untied, soft update in place: embedding 1.00, others 1.00
#   untied, soft update, new tensordict: embedding 1.00, others 1.00
#   tied, gradient step in place: embedding 2.00, others 1.00
#   tied, soft update in place: embedding 1.90, others 1.00
#   tied, soft update, new tensordict: embedding 1.00, others 1.00
# So change the parameters of a tied module by torch.optim or by a loop over parameters().
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 numpy 2>/dev/null
"$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import torch
from tensordict import TensorDict


class Model(torch.nn.Module):
    def __init__(self, tied, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(16, 8)
        self.layer = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)))


def gradient(tied):
    model = Model(tied, 0)
    ids = torch.arange(16)
    torch.nn.functional.cross_entropy(model(ids), ids.flip(0)).backward()
    return model


def values(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def ratio(before, after, right):
    """The step of each parameter as a multiple of the right one."""
    return {name: ((after[name] - old).norm() / (right[name] - old).norm()).item() for name, old in before.items()}


def step(tied):
    model, other = gradient(tied), gradient(tied)
    before = values(model)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    parameters = TensorDict.from_module(model)
    parameters.data.add_(parameters.grad, alpha=-0.1)
    return ratio(before, values(model), values(other))


def soft_update(tied, in_place):
    source, target = Model(tied, 0), Model(tied, 1)
    before = values(target)
    right = {name: old + 0.1 * (values(source)[name] - old) for name, old in before.items()}
    parameters, wanted = TensorDict.from_module(target).data, TensorDict.from_module(source).data
    if in_place:
        parameters.lerp_(wanted, 0.1)
    else:
        parameters.lerp(wanted, 0.1).to_module(target)
    return ratio(before, values(target), right)


seen = {}
for tied, word in ((False, "untied"), (True, "tied")):
    for title, steps in (
        ("gradient step in place", step(tied)),
        ("soft update in place", soft_update(tied, True)),
        ("soft update, new tensordict", soft_update(tied, False)),
    ):
        others = [value for name, value in steps.items() if name != "embed.weight"]
        assert max(abs(value - 1) for value in others) < 0.01
        seen[word, title] = round(steps["embed.weight"], 2)
        print(f"{word}, {title}: embedding {steps['embed.weight']:.2f}, others {max(others):.2f}")
sys.exit(list(seen.values()) != [1, 1, 1, 2, 1.9, 1])
PY
