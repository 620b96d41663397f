#!/usr/bin/env bash
# torch 2.13.0: the recipe for an ensemble gives numbers that do not come from the weights, if the models are tied.
#
# `stack_module_state` stacks the weights of several models, and `vmap` with `functional_call` runs them at once. The
# tutorial on ensembles makes a model without memory for the call, by `copy.deepcopy(models[0]).to("meta")`. The move to
# the meta device makes two parameters of a tied one, which a cast does not. `stack_module_state` has a tied matrix once,
# under the embedding's name, as `named_parameters` has. So the head keeps its meta parameter, which has no values. The
# call raises nothing and returns a CPU tensor, whose numbers differ from call to call. Gradients of it are as wrong. With
# `models[0]` itself, as in the docstring of stack_module_state, the outputs are right. `functional_call` with strict=True
# raises. The documentation of these functions mentions ties only for tie_weights, and no public issue was found. Seen
# with torch 2.13.0:
#   untied, on meta: outputs of the three models: True
#   tied, models[0]: outputs of the three models: True
#   tied, on meta: one parameter after the move: False; device of the outputs: cpu; outputs of the three models: False
#   tied, on meta, strict: RuntimeError
# So call the ensemble through models[0], or tie again after the move to meta.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PY'
import copy
import sys

import torch
from torch.func import functional_call, stack_module_state, vmap


class Model(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def run(tied, meta, **options):
    """The outputs of an ensemble, whether they are those of its models, and whether the called model is tied."""
    torch.manual_seed(0)
    models, ids = [Model(tied) for _ in range(3)], torch.arange(20)
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta") if meta else models[0]

    def call(parameters, buffers, ids):
        return functional_call(base, (parameters, buffers), (ids,), **options)

    outputs = vmap(call, (0, 0, None))(parameters, buffers, ids)
    right = all(given.allclose(model(ids), atol=1e-4) for given, model in zip(outputs, models))
    return outputs.device.type, right, base.head.weight is base.embed.weight


_, untied, _ = run(tied=False, meta=True)
_, first, _ = run(tied=True, meta=False)
device, tied, one = run(tied=True, meta=True)
try:
    run(tied=True, meta=True, strict=True)
    strict = "nothing"
except RuntimeError as error:
    strict = type(error).__name__
print(f"untied, on meta: outputs of the three models: {untied}")
print(f"tied, models[0]: outputs of the three models: {first}")
print(f"tied, on meta: one parameter after the move: {one}; device of the outputs: {device}; outputs of the three models: {tied}")
print(f"tied, on meta, strict: {strict}")
sys.exit((untied, first, one, device, tied, strict) != (True, True, False, "cpu", False, "RuntimeError"))
PY
