#!/usr/bin/env bash
# mergekit 0.1.5: an adapter that is extracted from a Qwen2 has the trained biases in its file, and PEFT leaves them out.
#
# `mergekit-extract-lora` makes a LoRA adapter of the difference between a fine-tuned model and its base. The layers for
# q, k and v of a Qwen2 have biases, and fine-tuning changes them. mergekit stores the difference of each as
# lora_B.bias. PEFT reads such tensors if the adapter's config says lora_bias, and mergekit does not write that key. So
# the default counts, and PEFT loads the adapter without them, also at full rank. It reports missing tensors, and these
# are surplus. With "lora_bias": true in the config, the same file gives the model that was extracted. PEFT then refuses
# a merge, because other layers of the adapter have no bias. With --embed-lora it refuses that key at the load. The
# README of mergekit calls the result PEFT-compatible. Pull request 2237 of PEFT, which added lora_bias, names extracted
# adapters as its main use. No public issue about the missing key was found. A tied model with --embed-lora has one more
# loss. mergekit then stores the difference of its one matrix twice, for the embedding and for the head. PEFT computes
# both, and a merge adds both to the same matrix. For this PEFT has a warning about complications. Seen with mergekit
# 0.1.5, peft 0.21.2, transformers 5.24.0 and torch 2.13.0. The figures are distances from the logits of the fine-tuned
# model. The distance of the base is 1:
#   biases trained: adapter 1.00, merged 1.00
#   biases trained, with lora_bias: adapter 0.00, merge RuntimeError
#   biases trained, --embed-lora: adapter 1.00, merged 1.00
#   biases trained, --embed-lora, with lora_bias: load ValueError
#   other layers trained: adapter 0.00, merged 0.00
#   tied, embedding trained: adapter 0.00, merged 0.00
#   tied, embedding trained, --embed-lora: adapter 0.00, merged 0.88
# So set lora_bias in the extracted config, and leave --embed-lora out. Before a merge, add the stored differences to the
# biases of the base by hand.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 mergekit==0.1.5 transformers==5.24.0 \
  peft==0.21.2 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import json
import pathlib
import shutil
import subprocess
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

PROGRAM = pathlib.Path(sys.executable).with_name("mergekit-extract-lora")
CONFIG = pathlib.Path("adapter/adapter_config.json")
ids = torch.arange(1, 13)[None]


@torch.no_grad()
def logits(model):
    return model.eval()(ids).logits


def make(name, tied, trained=None):
    """A random Qwen2, the same in each call, whose parameters of the named kind have moved."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=tied, initializer_range=0.1))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if trained and trained in key:
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(name)
    return logits(model)


def distance(model):
    """How far a model is from the fine-tuned one; the base is at 1."""
    return float((logits(model) - fine).norm() / (base - fine).norm())


def load():
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")


def report(title):
    """Print how far the adapter is from its model, before and after a merge, or which error comes."""
    try:
        step, words = "load", []
        adapter = distance(load())
        step, words = "merge", [f"adapter {adapter:.2f}"]
        merged = distance(load().merge_and_unload())
        words.append(f"merged {merged:.2f}")
        seen.append((adapter > 0.3, merged > 0.3))
    except (RuntimeError, ValueError) as error:
        words.append(f"{step} {type(error).__name__}")
        seen.append(words)
    print(f"{title}: {', '.join(words)}")


seen = []
for title, tied, trained, options in (
    ("biases trained", False, "bias", []),
    ("biases trained, --embed-lora", False, "bias", ["--embed-lora"]),
    ("other layers trained", False, "proj.weight", []),
    ("tied, embedding trained", True, "embed", []),
    ("tied, embedding trained, --embed-lora", True, "embed", ["--embed-lora"]),
):
    shutil.rmtree("adapter", ignore_errors=True)
    base, fine = make("base", tied), make("fine", tied, trained)
    names = ["--model", "./fine", "--base-model", "./base", "--out-path", "adapter", "--max-rank", "64"]
    subprocess.run([PROGRAM, *names, *options], check=True, capture_output=True)
    report(title)
    if trained == "bias":
        config = json.loads(CONFIG.read_text())
        assert "lora_bias" not in config
        CONFIG.write_text(json.dumps(config | {"lora_bias": True}))
        report(f"{title}, with lora_bias")
refused = ["adapter 0.00", "merge RuntimeError"], ["load ValueError"]
lost, right = (True, True), (False, False)
sys.exit(seen != [lost, refused[0], lost, refused[1], right, right, (False, True)])
PY
