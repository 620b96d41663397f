#!/usr/bin/env bash
# keras-hub 0.32.0: five kinds of untied models are loaded without their head, and a Llama without its biases.
#
# `CausalLM.from_preset` reads a directory that transformers has saved. With tie_word_embeddings=false the file has an
# lm_head.weight that differs from the embedding. For Llama, Qwen2 and Qwen3, keras-hub follows the flag and loads the
# head. Its classes of Gemma, Gemma 2, Gemma 3, GPT-2 and SmolLM3 have one matrix for both. The loader does not look at
# the flag there. It leaves the head in the file and multiplies by the embedding, so each logit is wrong. It asks the
# file for the names that it knows. Nobody compares these with the names in the file, so nothing is raised or warned. A
# Llama with attention_bias loses its biases in the same way. The documentation of from_preset mentions neither, and no
# public issue was found. Seen with keras-hub 0.32.0, keras 3.15.1, transformers 5.24.0 and torch 2.13.0; the figures
# are distances from the logits of transformers, by their norm:
#   Llama: tied 0.0, untied 0.0
#   Qwen2: tied 0.0, untied 0.0
#   Qwen3: tied 0.0, untied 0.0
#   Gemma: tied 0.0, untied 1.47
#   Gemma 2: tied 0.0, untied 1.37
#   Gemma 3: tied 0.0, untied 1.41
#   GPT-2: tied 0.0, untied 1.49
#   SmolLM3: tied 0.0, untied 1.37
#   Llama with attention_bias: tied 1.06, untied 1.01
# So compare the logits with those of transformers after such a load. The script needs no TensorFlow and installs none.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 keras==3.15.1 \
  kagglehub kagglesdk sentencepiece 2>/dev/null
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps keras-hub==0.32.0 2>/dev/null
cd "$work"
export KERAS_BACKEND=torch KERAS_HOME="$work" HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
"$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import keras
import keras_hub
import numpy as np
import torch
import transformers

ids = np.arange(1, 11)[None]
sizes = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
head = {"head_dim": 8}
gpt = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}
kinds = {
    "Llama": ("Llama", sizes),
    "Qwen2": ("Qwen2", sizes),
    "Qwen3": ("Qwen3", sizes | head),
    "Gemma": ("Gemma", sizes | head),
    "Gemma 2": ("Gemma2", sizes | head | {"query_pre_attn_scalar": 8}),
    "Gemma 3": ("Gemma3Text", sizes | head | {"query_pre_attn_scalar": 8}),
    "GPT-2": ("GPT2", gpt),
    "SmolLM3": ("SmolLM3", sizes),
    "Llama with attention_bias": ("Llama", sizes | {"attention_bias": True}),
}


@torch.no_grad()
def distance(name, options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    exact = model(torch.tensor(ids)).logits.numpy()
    model.save_pretrained("model")
    loaded = keras_hub.models.CausalLM.from_preset("model", preprocessor=None)
    logits = keras.ops.convert_to_numpy(loaded({"token_ids": ids, "padding_mask": np.ones_like(ids)}))
    return round(float(np.linalg.norm(logits - exact) / np.linalg.norm(exact)), 2)


seen = {}
for kind, (name, options) in kinds.items():
    seen[kind] = [distance(name, options | {"tie_word_embeddings": tied}) for tied in (True, False)]
    print(f"{kind}: tied {seen[kind][0]}, untied {seen[kind][1]}")
right = [max(figures) < 0.01 for figures in seen.values()]
tied = [figures[0] < 0.01 for figures in seen.values()]
sys.exit((right, tied) != ([True] * 3 + [False] * 6, [True] * 8 + [False]))
PY
