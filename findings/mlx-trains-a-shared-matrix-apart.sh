#!/usr/bin/env bash
# mlx 0.32.4: a head that shares the array of the embedding is trained apart from it, and a shared layer is not.
#
# `head.weight = embed.weight` ties a head in PyTorch. In mlx it is accepted, and the model computes like a tied one.
# `nn.value_and_grad` then returns a gradient for each name, and the optimizer gives each name a new array. After the
# first step there are two matrices, as in a model that was never tied and started with equal ones. The two gradients
# are not added up, so the embedding learns from the lookup alone. A layer that a model holds under two names stays one
# layer. Its gradient comes whole under the last name, and is zero under the first. It is trained like a layer with one
# name. `nn.quantize` makes two layers of it. In both cases the parameters list the matrix twice, so it is counted
# twice. Nothing is raised or warned. `Embedding.as_linear` uses one matrix for both. The docstrings of Module and
# value_and_grad do not mention shared parameters, and no public issue was found. Seen with mlx 0.32.4. Distances are
# those of the two matrices, or of logits from those of the same model with as_linear, by their norm:
#   as_linear: 8192 numbers in parameters
#   shared array: 12288 numbers, logits at the start as with as_linear True
#   shared array, ten steps: distance of the two matrices 1.94, of the logits 0.51; trained like an untied model True
#   shared layer, ten steps: one layer True, trained like a layer with one name True, gradient of the first name zero True
#   shared layer, quantized: one layer False
# So use as_linear for the head, and compare the number of parameters with the one that is meant.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "mlx[cpu]==0.32.4" 2>/dev/null
"$work/venv/bin/python" - <<'PY' 2>/dev/null
import sys

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
from mlx.utils import tree_flatten

ROWS, WIDTH = 64, 64
ids = mx.array([[5, 6, 7, 8, 9, 10]])


class Model(nn.Module):
    """A language model whose head, or whose second layer, shares what ``kind`` says."""

    def __init__(self, kind):
        super().__init__()
        mx.random.seed(0)
        self.kind, self.embed, self.layer = kind, nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        if kind == "shared layer":
            self.again = self.layer
        if kind in ("shared array", "untied"):
            self.head = nn.Linear(WIDTH, ROWS, bias=False)
            self.head.weight = self.embed.weight if kind == "shared array" else mx.array(self.embed.weight)

    def __call__(self, tokens):
        state = self.embed(tokens)
        second = self.again if self.kind == "shared layer" else self.layer
        for layer in (self.layer, second):
            state = state + nn.relu(layer(state))
        return self.head(state) if "head" in self else self.embed.as_linear(state)


def loss(model):
    return nn.losses.cross_entropy(model(ids)[:, :-1], ids[:, 1:]).mean()


def train(kind):
    model, optimizer = Model(kind), optimizers.AdamW(0.01)
    for _ in range(10):
        _, gradients = nn.value_and_grad(model, loss)(model)
        optimizer.update(model, gradients)
        mx.eval(model.parameters())
    return model, gradients


def numbers(model):
    return sum(value.size for _, value in tree_flatten(model.parameters()))


def distance(one, two):
    return (mx.linalg.norm((one - two).flatten()) / mx.linalg.norm(two.flatten())).item()


def alike(one, two):
    return distance(one, two) < 1e-4


one, shared = Model("as_linear"), Model("shared array")
seen = [numbers(shared) == numbers(one) + ROWS * WIDTH, alike(shared(ids), one(ids))]
print(f"as_linear: {numbers(one)} numbers in parameters")
print(f"shared array: {numbers(shared)} numbers, logits at the start as with as_linear {seen[-1]}")
kinds = ("as_linear", "shared array", "untied", "shared layer")
(one, _), (shared, _), (untied, _), (layers, gradients) = map(train, kinds)
apart, logits = distance(shared.head.weight, shared.embed.weight), distance(shared(ids), one(ids))
seen += [apart > 0.05, logits > 0.05, alike(shared(ids), untied(ids))]
print(f"shared array, ten steps: distance of the two matrices {apart:.2f}, of the logits {logits:.2f}; ", end="")
print(f"trained like an untied model {seen[-1]}")
first = mx.abs(gradients["layer"]["weight"]).max().item()
seen += [layers.again is layers.layer, alike(layers(ids), one(ids)), first == 0]
print("shared layer, ten steps: one layer {}, trained like a layer with one name {}, ".format(*seen[-3:]), end="")
print(f"gradient of the first name zero {seen[-1]}")
nn.quantize(layers, group_size=32, bits=4)
seen.append(layers.again is not layers.layer)
print(f"shared layer, quantized: one layer {not seen[-1]}")
sys.exit(not all(seen))
PY
