#!/usr/bin/env bash
# onnx2torch 1.5.15: a tied model comes back from ONNX with a frozen embedding, and at times a frozen head.
#
# onnx2torch makes a PyTorch module of an ONNX graph. A Gemm node becomes a `Linear`, whose matrix is a parameter. A
# matrix that a Gather or a MatMul node reads becomes a buffer, so an optimizer over `parameters()` never sees it.
# Each node gets its own copy, also of an initializer that two nodes share. The exporter of PyTorch writes a Gemm
# where a layer gets inputs of two dimensions, and a MatMul for three. So the example input of the export decides what
# is trained later. Without a batch dimension, the head is trained and the embedding is frozen: the model is untied by
# its first step. With a batch dimension both are frozen, and so are all other linear layers. Here the norm alone
# trains. Outputs are right before the first step, and nothing is raised or warned. The README says nothing about
# training. Issue 194 of onnx2torch reports a model without any parameters. Issue 132, which is closed, is about Gemm.
# No public issue about a tied matrix was found. The script puts a mock in the place of torchvision. onnx2torch
# imports it for nodes that this graph does not have, and its build must fit that of torch. Seen with onnx2torch
# 1.5.15, onnx 1.23.2, onnxscript 0.7.2 and torch 2.13.0:
#   original: trained 5 of 5, embedding changed True, head changed True, equal True
#   input [5]: Gather Gemm LayerNormalization Gemm; shared True; outputs equal True
#     trained 5 of 6, embedding changed False, head changed True, equal False
#   input [2, 5]: Gather MatMul Add LayerNormalization MatMul; outputs equal True
#     trained 2 of 6, embedding changed False, head changed False, equal True
# So compare the names in `named_buffers` with the matrices of the graph before training, and make parameters of them.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 \
  numpy 2>/dev/null
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps onnx2torch==1.5.15 2>/dev/null
cd "$work"
"$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import sys
from unittest.mock import MagicMock

sys.modules["torchvision"] = sys.modules["torchvision.ops"] = MagicMock()

import onnx
import onnx2torch
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 4)
        self.norm, self.head = torch.nn.LayerNorm(4), torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.layer(self.embed(ids))))


def tables(module):
    """The embedding and the head of a module, each with a row for each token, by the size of the vocabulary."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    found = [tensor if len(tensor) == 10 else tensor.T for _, tensor in named if 10 in tensor.shape]
    frozen = [tensor for tensor in found if not tensor.requires_grad]
    return (found[0], found[1]) if len(frozen) != 1 else (frozen[0], *(t for t in found if t is not frozen[0]))


def train(module, ids):
    """How many tensors one step of SGD changes, and what it does to the embedding and to the head."""
    states = list({tensor.data_ptr(): tensor for tensor in module.state_dict().values()}.values())
    before = [tensor.clone() for tensor in states]
    embedding, head = (table.detach().clone() for table in tables(module))
    module(ids).square().sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.01).step()
    after = tables(module)
    changed = sum(not tensor.equal(old) for tensor, old in zip(states, before))
    return changed, len(states), not after[0].equal(embedding), not after[1].equal(head), after[0].equal(after[1])


def describe(result):
    return "trained {} of {}, embedding changed {}, head changed {}, equal {}".format(*result)


seen = []
for shape in ((5,), (2, 5)):
    torch.manual_seed(0)
    model, ids = Model(), torch.arange(10)[: 5 * len(shape)].reshape(shape)
    torch.onnx.export(model, (ids,), "model.onnx", dynamo=True, verbose=False)
    graph = onnx.load("model.onnx")
    converted = onnx2torch.convert(graph)
    kinds = [node.op_type for node in graph.graph.node]
    shared = kinds[-1] == "Gemm" and graph.graph.node[0].input[0] == graph.graph.node[-1].input[1]
    same = torch.allclose(converted(ids), model(ids), atol=1e-5)
    result = train(converted, ids)
    if not seen:
        seen.append(train(model, ids))
        print("original:", describe(seen[0]))
    text = f"; shared {shared}" if shared else ""
    print(f"input {list(shape)}: {' '.join(kinds)}{text}; outputs equal {same}")
    print(f"  {describe(result)}")
    seen.append((shared, same, result))
want = [(5, 5, True, True, True), (True, True, (5, 6, False, True, False))]
sys.exit(seen != [*want, (False, True, (2, 6, False, False, True))])
PY
