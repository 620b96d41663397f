#!/usr/bin/env bash
# mergekit 0.1.5: one recipe writes a tied or an untied config from run to run, beside the same weights.
#
# A tied model is merged with an untied one of the same sizes, each with the weight 0.5. Such pairs exist, because some
# fine-tunes store a head. mergekit averages the head of the one and the embedding of the other, and writes the same
# bytes in each run. Without a base_model, which a linear merge does not have, config.json is that of the first model in
# a Python set. The order of that set changes with each process, and with it tie_word_embeddings. The script merges
# until it has seen both. Nothing is raised or warned. transformers 5.24.0 looks at the values, and computes the same
# from both directories. mlx-lm follows the flag: where it is true, it drops the merged head and uses the embedding.
# Pull request 464 of mergekit, "Better tied weight handling", made it write a head if any input has one, and says
# nothing about the flag. Pull request 889 of mlx-lm taught two more classes the flag, for such models. No public issue
# about the changing config was found. Seen with mergekit 0.1.5, transformers 5.24.0, mlx-lm 0.32.2, mlx 0.32.4 and
# torch 2.13.0:
#   the two files of weights are equal: True
#   the config says tied False; logits of the merge: transformers True, mlx-lm True
#   the config says tied True; logits of the merge: transformers True, mlx-lm False
# So read the flag of a merged config, and set it to false if the file has a head that differs.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 mergekit==0.1.5 transformers==5.24.0 \
  mlx-lm==0.32.2 "mlx[cpu]==0.32.4" numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import json
import pathlib
import subprocess
import sys

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

ids = [[5, 6, 7]]


def make(name, tied):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=tied)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    model.save_pretrained(name)


def merge(out):
    program = pathlib.Path(sys.executable).with_name("mergekit-yaml")
    subprocess.run([program, "recipe.yml", out, "--no-copy-tokenizer"], check=True, capture_output=True)
    return json.loads((out / "config.json").read_text())["tie_word_embeddings"]


torch.manual_seed(0)
make("tied", True)
make("untied", False)
models = [{"model": f"./{name}", "parameters": {"weight": 0.5}} for name in ("tied", "untied")]
pathlib.Path("recipe.yml").write_text(json.dumps({"merge_method": "linear", "dtype": "float32", "models": models}))
merged = {}
for run in range(20):
    out = pathlib.Path(f"out{run}")
    merged.setdefault(merge(out), out)
    if len(merged) == 2:
        break
merged = [merged[flag] for flag in sorted(merged)]
files = [next(out.glob("*.safetensors")) for out in merged]
same = len(files) == 2 and files[0].read_bytes() == files[1].read_bytes()
print(f"the two files of weights are equal: {same}")

exact = LlamaForCausalLM(LlamaConfig.from_pretrained(merged[0], tie_word_embeddings=False))
exact.load_state_dict(load_file(files[0]))
exact = exact(torch.tensor(ids)).logits.detach().numpy()
seen = []
for out in merged:
    flag = json.loads((out / "config.json").read_text())["tie_word_embeddings"]
    torch_logits = LlamaForCausalLM.from_pretrained(out)(torch.tensor(ids)).logits.detach().numpy()
    mlx_logits = np.array(load_model(out)[0](mx.array(ids)))
    right = [bool(np.abs(logits - exact).max() < 1e-3) for logits in (torch_logits, mlx_logits)]
    seen.append([flag, *right])
    print(f"the config says tied {flag}; ", end="")
    print(f"logits of the merge: transformers {right[0]}, mlx-lm {right[1]}")
sys.exit(not same or seen != [[False, True, True], [True, True, False]])
PY
