#!/usr/bin/env bash
# tensorizer 2.12.1: a tied model is stored with its matrix twice, and a load unties the module it loads into.
#
# `write_module` and `write_state_dict` store the matrix of a tied model under both names. `load_into_module` makes a
# parameter of its own for each name, also in a module that was tied before. So the loaded model takes the memory of
# two matrices. At first it computes the same. In training each matrix goes its own way, and a checkpoint that is
# written then holds two that differ, under a config that says tied. Nothing is raised or warned. `torch.save` stores
# one matrix, and `load_state_dict` keeps the tie. The README of tensorizer does not mention ties; its example, GPT-J,
# is untied. No public issue was found. Seen with tensorizer 2.12.1 and torch 2.13.0:
#   before: parameters 1; the file holds the matrix 2 times (torch.save: 1)
#   after load_into_module: parameters 2, one object False, one memory False, equal True
#   after one step: equal False
#   after load_state_dict: parameters 1
# So tie again after a load: head.weight = embed.weight.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensorizer==2.12.1 2>/dev/null
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys
from pathlib import Path

import torch
from tensorizer import TensorDeserializer, TensorSerializer

work, ids = Path(sys.argv[1]), torch.arange(500)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def count(model):
    return len(list(model.parameters()))


def held(path):
    """How often the file holds the bytes of the matrix."""
    return path.read_bytes().count(model.embed.weight.detach().numpy().tobytes())


model, loaded, copied = Model(), Model(), Model()
before = count(loaded)
serializer = TensorSerializer(str(work / "model.tensors"))
serializer.write_module(model)
serializer.close()
torch.save(model.state_dict(), work / "model.pt")
copies = held(work / "model.tensors"), held(work / "model.pt")
print(f"before: parameters {before}; the file holds the matrix {copies[0]} times (torch.save: {copies[1]})")
TensorDeserializer(str(work / "model.tensors"), device="cpu").load_into_module(loaded)
one, two = loaded.embed.weight, loaded.head.weight
after = count(loaded), one is two, one.data_ptr() == two.data_ptr(), one.equal(two) and one.equal(model.embed.weight)
print("after load_into_module: parameters {}, one object {}, one memory {}, equal {}".format(*after))
optimizer = torch.optim.SGD(loaded.parameters(), lr=0.001)
loaded(ids).square().sum().backward()
optimizer.step()
print("after one step: equal", one.equal(two))
copied.load_state_dict(torch.load(work / "model.pt"))
print("after load_state_dict: parameters", count(copied))
want = (1, (2, 1), (2, False, False, True), False, 1)
sys.exit((before, copies, after, one.equal(two), count(copied)) != want)
PY
