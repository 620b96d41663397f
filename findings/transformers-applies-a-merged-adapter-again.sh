#!/usr/bin/env bash
# transformers 5.24.0: whether PEFT is installed decides what a complete model directory computes.
#
# PEFT trains a LoRA adapter and saves it into a directory. The adapter is then merged, and the merged model is saved into
# the same directory, as many training scripts do. The directory now holds adapter_config.json beside config.json and
# model.safetensors. `AutoModelForCausalLM.from_pretrained` loads the merged weights. Where PEFT is installed, it also
# loads the adapter onto them, so the change counts twice. Where PEFT is absent, it loads what was saved. Nothing is
# raised or warned in either case. transformers 4.57.6 with PEFT takes the base model that adapter_config.json names, so
# the change counts once and model.safetensors is ignored. The newer way is meant for models such as Granite Speech (pull
# request 43781 of transformers). Seen with transformers 5.24.0, peft 0.21.2 and torch 2.13.0:
#   peft installed: logits of the saved model: False, LoRA parameters 4
#   peft absent: logits of the saved model: True, LoRA parameters 0
# So a merged model needs a directory without adapter_config.json.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1 HF_HUB_OFFLINE=1
cat > "$work/load.py" <<'PY'
import sys
from importlib.util import find_spec

import torch
from transformers import AutoModelForCausalLM

work, wanted = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(f"{work}/model").eval()
with torch.no_grad():
    same = model(input_ids=torch.tensor([[1, 2, 3]])).logits.allclose(torch.load(f"{work}/logits.pt"), atol=1e-4)
names = sum("lora_" in name for name, _ in model.named_parameters())
peft = "installed" if find_spec("peft") else "absent"
print(f"peft {peft}: logits of the saved model: {same}, LoRA parameters {names}")
sys.exit(f"{same} {names}" != wanted)
PY
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 2>/dev/null
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base, folder = f"{sys.argv[1]}/base", f"{sys.argv[1]}/model"
config = GPT2Config(vocab_size=100, n_embd=32, n_head=2, n_layer=2, bos_token_id=0, eos_token_id=0)
GPT2LMHeadModel(config).save_pretrained(base)
adapter = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
model = get_peft_model(GPT2LMHeadModel.from_pretrained(base), adapter)
model.save_pretrained(folder)
merged = model.merge_and_unload().eval()
merged.save_pretrained(folder)
torch.save(merged(input_ids=torch.tensor([[1, 2, 3]])).logits.detach(), f"{sys.argv[1]}/logits.pt")
PY
"$work/venv/bin/python" "$work/load.py" "$work" "False 4" 2>/dev/null
"$work/venv/bin/pip" uninstall -q -y peft 2>/dev/null
"$work/venv/bin/python" "$work/load.py" "$work" "True 0" 2>/dev/null
