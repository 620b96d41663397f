#!/usr/bin/env bash
# mlx-lm 0.32.2: settings of config.json that it has no place for are dropped, and another model is computed.
#
# Each class of mlx-lm lists the settings that it knows. `load_model` keeps these and drops the others silently. So a
# wrong set of weights raises an error, and a setting that changes the function does not. mergekit-moe 0.1.5 makes a
# Qwen2 MoE of dense models, and writes norm_topk_prob=true: the weights of the chosen experts add up to 1. The Qwen2
# MoE of mlx-lm does not know that setting, so each of its MoE layers has a smaller output. clip_qkv of OLMoE and
# hidden_act of a Llama are dropped too. The window of the attention is dropped for Mixtral, Qwen2, Phi-3, StarCoder2
# and Gemma 2, and kept for Cohere 2. Mistral is loaded by the class of Llama, which uses a window only for layers that
# layer_types names. Published models have windows of 2,047 to 4,096 tokens, and Phi-3-mini-4k has one that is shorter
# than its context. Up to that length all is right. Without the setting each model is exact here. Two settings of the
# rotary embedding of transformers 5 are another matter, so the script writes them as transformers 4 did. Pull request
# 1698 of mlx-lm, closed, is about the part of a head that GLM rotates. Pull request 44, closed, is about a window. No
# public issue about the others was found. Seen with mlx-lm 0.32.2, mlx 0.32.4, transformers 5.24.0 and torch 2.13.0;
# the figures are distances from the logits of transformers for 24 tokens, by their norm:
#   Qwen2 MoE, norm_topk_prob: without the setting 0.00, with it 0.16
#   OLMoE, clip_qkv: without the setting 0.00, with it 0.77
#   Llama, hidden_act: without the setting 0.00, with it 0.24
#   Mistral, window: without the setting 0.00, with it 0.89
#   Mixtral, window: without the setting 0.00, with it 0.81
#   Qwen2, window: without the setting 0.00, with it 0.27
#   Phi-3, window: without the setting 0.00, with it 0.80
#   StarCoder2, window: without the setting 0.00, with it 0.28
#   Gemma 2, window: without the setting 0.00, with it 0.50
#   Cohere 2, window: without the setting 0.00, with it 0.00
# So compare the logits of both before such a model is served.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 mlx-lm==0.32.2 \
  "mlx[cpu]==0.32.4" numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import json
import logging
import pathlib
import sys

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model

logging.disable(logging.CRITICAL)
mx.set_default_device(mx.cpu)
ids = torch.arange(1, 25)[None]
sizes = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_local_experts": 8}


@torch.no_grad()
def distance(name, options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**sizes, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    exact = model(ids).logits[0].numpy()
    folder = pathlib.Path("model")
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    rope = written.pop("rope_parameters")
    written |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    (folder / "config.json").write_text(json.dumps(written))
    loaded = np.array(load_model(folder)[0](mx.array(ids.numpy()))[0].astype(mx.float32))
    return np.linalg.norm(loaded - exact) / np.linalg.norm(exact)


window = {"sliding_window": 8}
layers = {"use_sliding_window": True, "max_window_layers": 2}
cases = {
    "Qwen2 MoE, norm_topk_prob": ("Qwen2Moe", experts, {"norm_topk_prob": True}),
    "OLMoE, clip_qkv": ("Olmoe", experts, {"clip_qkv": 0.5}),
    "Llama, hidden_act": ("Llama", {}, {"hidden_act": "gelu"}),
    "Mistral, window": ("Mistral", {"sliding_window": None}, window),
    "Mixtral, window": ("Mixtral", {**experts, "sliding_window": None}, window),
    "Qwen2, window": ("Qwen2", {}, {**window, **layers}),
    "Phi-3, window": ("Phi3", {}, window),
    "StarCoder2, window": ("Starcoder2", {}, window),
    "Gemma 2, window": ("Gemma2", {"head_dim": 16}, window),
    "Cohere 2, window": ("Cohere2", {}, window),
}
seen = {}
for label, (name, options, setting) in cases.items():
    seen[label] = distance(name, options), distance(name, {**options, **setting})
    print(f"{label}: without the setting {seen[label][0]:.2f}, with it {seen[label][1]:.2f}")
exact = max(plain for plain, _ in seen.values())
wrong = [label for label, (_, changed) in seen.items() if changed > 0.05]
sys.exit(exact > 0.005 or wrong != list(cases)[:-1])
PY
