#!/usr/bin/env bash
# mlx-lm 0.32.2: a model that transformers 5 saved is loaded with rotary embeddings that are not its own.
#
# The base of the rotary embeddings was rope_theta in config.json, and their scaling was rope_scaling. transformers 5
# writes both into rope_parameters, and leaves the old names out. 17 of the model files of mlx-lm mention
# rope_parameters, and 99 mention rope_theta. Most of these have a default. So Llama, Mistral, Gemma, Gemma 2, Phi-3,
# OLMo 2 and SmolLM3 rotate with 10,000, whatever the config says. Qwen2 and Mixtral do so with 1,000,000. A scaling, as
# in Llama 3.1, is gone. Nothing is raised or warned. A GGUF file from `mlx_lm fuse --export-gguf` has no base either.
# Granite has no default, and raises a TypeError. With rope_theta beside rope_parameters, each of the others is right.
# mlx-lm itself requires transformers 5. No public issue of mlx-lm was found; pull request 28542 of vLLM is about the
# same names. Seen with mlx-lm 0.32.2, mlx 0.32.4, transformers 5.24.0 and torch 2.13.0. The figures are distances of
# the logits from those of transformers, by their norm:
#   Llama: base 10000 0.0, base 1000000 0.36; with rope_theta 0.0 and 0.0
#   Mistral: base 10000 0.0, base 1000000 0.36; with rope_theta 0.0 and 0.0
#   Gemma: base 10000 0.0, base 1000000 0.17; with rope_theta 0.0 and 0.0
#   Gemma2: base 10000 0.0, base 1000000 0.3; with rope_theta 0.0 and 0.0
#   Phi3: base 10000 0.0, base 1000000 0.47; with rope_theta 0.0 and 0.0
#   Olmo2: base 10000 0.0, base 1000000 0.53; with rope_theta 0.0 and 0.0
#   SmolLM3: base 10000 0.0, base 1000000 0.36; with rope_theta 0.0 and 0.0
#   Qwen2: base 10000 0.38, base 1000000 0.0; with rope_theta 0.0 and 0.0
#   Mixtral: base 10000 0.58, base 1000000 0.0; with rope_theta 0.0 and 0.0
#   Qwen3: base 10000 0.0, base 1000000 0.0; with rope_theta 0.0 and 0.0
#   Llama, scaled as Llama 3.1: 0.37
# So add rope_theta and rope_scaling to config.json before mlx-lm reads it.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 mlx-lm==0.32.2 \
  "mlx[cpu]==0.32.4" numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model


ids = np.arange(3, 43)[None]
sizes = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


@torch.no_grad()
def save(name, **rope):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, rope_parameters={"rope_type": "default"} | rope)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained("model")
    return model(torch.tensor(ids)).logits.numpy()


def distance(exact):
    logits = np.array(load_model(Path("model"))[0](mx.array(ids)).astype(mx.float32))
    return round(float(np.linalg.norm(logits - exact) / np.linalg.norm(exact)), 2)


seen = {}
for name in ("Llama", "Mistral", "Gemma", "Gemma2", "Phi3", "Olmo2", "SmolLM3", "Qwen2", "Mixtral", "Qwen3"):
    figures, mended = [], []
    for base in (10000.0, 1000000.0):
        exact = save(name, rope_theta=base)
        figures.append(distance(exact))
        path = Path("model/config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": base}))
        mended.append(distance(exact))
    print(f"{name}: base 10000 {figures[0]}, base 1000000 {figures[1]}; ", end="")
    print(f"with rope_theta {mended[0]} and {mended[1]}")
    seen[name] = [figure > 0.1 for figure in figures] + [max(mended) > 0.01]
llama3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
scaled = distance(save("Llama", rope_theta=500000.0, original_max_position_embeddings=32, **llama3))
print(f"Llama, scaled as Llama 3.1: {scaled}")
expected = dict.fromkeys(seen, [False, True, False]) | dict.fromkeys(("Qwen2", "Mixtral"), [True, False, False])
expected["Qwen3"] = [False] * 3
sys.exit(seen != expected or scaled < 0.1)
PY
