#!/usr/bin/env bash
# peft 0.21.2: an adapter with alpha_pattern or rank_pattern gets other scales when it is hot-swapped, even for itself.
#
# `hotswap_adapter` puts the weights of a saved adapter in the place of those that a model has, and sets the scale of
# each layer anew. alpha_pattern and rank_pattern give some layers an alpha and a rank of their own. A load and a hot
# swap both look a layer up in them. The load looks up the name of the layer, such as q_proj. The hot swap looks up the
# name of the parameter, which goes on with lora_A.default.weight. A pattern has to match at the end, so none ever does.
# Each layer gets the alpha and the rank that the config has for the others. So an adapter that is swapped for itself
# computes something else. Nothing is raised or warned. alpha_pattern is compared before, so two adapters must agree in
# it, and that is all it is used for. rank_pattern is not compared. Pull request 2120 of peft added the function. Its
# docstring mentions neither pattern, and no public issue was found. Seen with peft 0.21.2, transformers 5.24.0 and
# torch 2.13.0; the figures are distances of the logits from those of the loaded adapter, by their norm:
#   no pattern: scale of q_proj 2.0, after the swap 2.0; distance 0.0
#   alpha_pattern: scale of q_proj 16.0, after the swap 2.0; distance 0.97
#   rank_pattern: scale of q_proj 4.0, after the swap 2.0; distance 0.27
# So load such an adapter under a new name with load_adapter, and delete the old one.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.hotswap import hotswap_adapter
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.arange(3, 30)[None]


def base():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.1))


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=ids).logits


def scale(model):
    return model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj").scaling["default"]


seen = {}
kinds = {"no pattern": {}, "alpha_pattern": {"alpha_pattern": {"q_proj": 64}}, "rank_pattern": {"rank_pattern": {"q_proj": 2}}}
for kind, pattern in kinds.items():
    folder = f"{sys.argv[1]}/{kind.replace(' ', '-')}"
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **pattern)
    get_peft_model(base(), config).save_pretrained(folder)
    model = PeftModel.from_pretrained(base(), folder)
    loaded, first = logits(model), scale(model)
    hotswap_adapter(model, folder, adapter_name="default")
    distance = round(((logits(model) - loaded).norm() / loaded.norm()).item(), 2)
    print(f"{kind}: scale of q_proj {first}, after the swap {scale(model)}; distance {distance}")
    seen[kind] = (first, scale(model), distance > 0.05)
sys.exit(seen != dict(zip(kinds, ((2.0, 2.0, False), (16.0, 2.0, True), (4.0, 2.0, True)), strict=True)))
PY
