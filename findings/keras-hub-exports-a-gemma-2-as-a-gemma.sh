#!/usr/bin/env bash
# keras-hub 0.32.0: the export of a Gemma 2 writes a Gemma with a part of its weights, and returns as if all were well.
#
# keras-hub has one class for Gemma and Gemma 2. `from_preset` reads both rightly from a directory of transformers.
# `export_to_transformers` writes both with the model type "gemma". So the export of a Gemma 2 lacks two norms of each
# layer, the soft caps and the sliding window. transformers loads it without a warning as a Gemma, and computes
# something else. The export also takes the first head of the keys and of the values, whatever their number. So each
# export of a Gemma with 7 billion parameters, or of a published Gemma 2, has lost the others. The call returns
# normally, and its config.json counts all heads. The load raises an error about sizes. A Gemma with one such head, as
# that with 2 billion parameters, comes back exactly. The documentation of the method promises an error for classes
# that it cannot export, and none was raised. Issue 2330 of keras-hub, from before the method, asks for an export and
# says that an older script does not fit Gemma 2. No public issue about the method was found. Seen with keras-hub
# 0.32.0, keras 3.15.1, transformers 5.24.0 and torch 2.13.0; the figures are distances from the logits of the model
# that was read:
#   Gemma, heads of keys 1: in keras 0.00; stored 20 of 20 tensors, 8 of 8 rows of keys; loaded 0.00 as GemmaForCausalLM
#   Gemma, heads of keys 2: in keras 0.00; stored 20 of 20 tensors, 8 of 16 rows of keys; the load raises RuntimeError
#   Gemma 2, heads of keys 1: in keras 0.00; stored 20 of 24 tensors, 8 of 8 rows of keys; loaded 1.07 as GemmaForCausalLM
#   Gemma 2, heads of keys 2: in keras 0.00; stored 20 of 24 tensors, 8 of 16 rows of keys; the load raises RuntimeError
# So save a Gemma 2 as a preset of keras-hub, and keep the original directory. The script installs no TensorFlow.
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
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GemmaConfig, GemmaForCausalLM

KEYS = "model.layers.0.self_attn.k_proj.weight"
ids = np.arange(1, 13)[None]
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
sizes |= {"num_attention_heads": 4, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}


@torch.no_grad()
def logits(model):
    return model.eval()(torch.tensor(ids)).logits.numpy()


@torch.no_grad()
def random_model(model_class, config):
    torch.manual_seed(0)
    model = model_class(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def distance(values):
    return float(np.linalg.norm(values - exact) / np.linalg.norm(exact))


seen = []
for title, heads, model_class, config in (
    ("Gemma", 1, GemmaForCausalLM, GemmaConfig(**sizes, num_key_value_heads=1)),
    ("Gemma", 2, GemmaForCausalLM, GemmaConfig(**sizes, num_key_value_heads=2)),
    ("Gemma 2", 1, Gemma2ForCausalLM, Gemma2Config(**sizes, num_key_value_heads=1, query_pre_attn_scalar=8)),
    ("Gemma 2", 2, Gemma2ForCausalLM, Gemma2Config(**sizes, num_key_value_heads=2, query_pre_attn_scalar=8)),
):
    original, exported = f"{title}-{heads}", f"{title}-{heads}-exported"
    model = random_model(model_class, config)
    exact = logits(model)
    model.save_pretrained(original)
    keras_model = keras_hub.models.GemmaCausalLM.from_preset(original, preprocessor=None, dtype="float32")
    with torch.no_grad():
        output = keras_model({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    read = distance(keras.ops.convert_to_numpy(output))
    keras_model.export_to_transformers(exported)
    before, after = (load_file(f"{name}/model.safetensors") for name in (original, exported))
    rows = len(after[KEYS]), len(before[KEYS])
    print(f"{title}, heads of keys {heads}: in keras {read:.2f};", end=" ")
    print(f"stored {len(after)} of {len(before)} tensors, {rows[0]} of {rows[1]} rows of keys;", end=" ")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
        far = distance(logits(loaded))
        print(f"loaded {far:.2f} as {type(loaded).__name__}")
    except RuntimeError as error:
        far = None
        print(f"the load raises {type(error).__name__}")
    seen.append((read < 1e-3, len(before) - len(after), rows, far))
(one, two, second_one, second_two) = seen
right = one[:3] == (True, 0, (8, 8)) and one[3] < 1e-3
lost = two == (True, 0, (8, 16), None) and second_two == (True, 4, (8, 16), None)
wrong = second_one[:3] == (True, 4, (8, 8)) and second_one[3] > 0.2
sys.exit(not (right and lost and wrong))
PY
