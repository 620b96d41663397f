#!/usr/bin/env bash
# transformers loads float weights whose config still names a quantisation, and the model computes something else.
#
# Somebody merges an adapter into a quantised model, or dequantises it, and saves floats. The config keeps its entry
# quantization_config. The files then have no codes and no scales. One would expect an error, or the floats.
# from_pretrained builds quantised layers all the same. With compressed-tensors in FP8, the layers take the floats and
# multiply them by scales that nobody set: the logits are not those of the model. With packed 4 bits, it drops the
# floats. With bitsandbytes, it reports no missing and no unexpected tensor. Both models fail at their first text. All
# three loads end without an error.
#
# Versions: transformers 5.24.0, compressed-tensors 0.20.1, bitsandbytes 0.50.2, accelerate 1.15.0, torch 2.13.0.
# Output seen:
#   float-quantized: loads, 14 missing, 0 unexpected; logits of the model: False
#   pack-quantized: loads, 42 missing, 14 unexpected; the first text fails: True
#   bitsandbytes: loads, 0 missing, 0 unexpected; the first text fails: True
#   no quantisation: loads, 0 missing, 0 unexpected; logits of the model: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 \
  compressed-tensors==0.20.1 bitsandbytes==0.50.2 accelerate==1.15.0
cd "$folder"
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=200, num_hidden_layers=2, tie_word_embeddings=True, **sizes)).eval()
model.save_pretrained("model")
config = json.loads(Path("model/config.json").read_text())
text = torch.arange(1, 9)[None]
with torch.no_grad():
    expected = model(text).logits


def compressed(layout, **weights):
    """The entry of compressed-tensors for all linear layers but the head."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    entry = {"quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"]}
    return {**entry, "config_groups": {"group_0": group}, "quantization_status": "compressed"}


entries = {
    "float-quantized": compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    "pack-quantized": compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "no quantisation": None,
}
seen = []
for name, entry in entries.items():
    edited = {**config, "quantization_config": entry} if entry else config
    Path("model/config.json").write_text(json.dumps(edited))
    loaded, report = AutoModelForCausalLM.from_pretrained("model", output_loading_info=True)
    missing, unexpected = len(report["missing_keys"]), len(report["unexpected_keys"])
    try:
        with torch.no_grad():
            same = torch.allclose(loaded.eval()(text).logits.float(), expected, atol=0.1)
        end = f"logits of the model: {same}"
    except (AssertionError, RuntimeError, ValueError):
        end = "the first text fails: True"
    seen.append(f"{name}: loads, {missing} missing, {unexpected} unexpected; {end}")
print(*seen, sep="\n")
sys.exit(
    seen
    != [
        "float-quantized: loads, 14 missing, 0 unexpected; logits of the model: False",
        "pack-quantized: loads, 42 missing, 14 unexpected; the first text fails: True",
        "bitsandbytes: loads, 0 missing, 0 unexpected; the first text fails: True",
        "no quantisation: loads, 0 missing, 0 unexpected; logits of the model: True",
    ]
)
PYTHON
