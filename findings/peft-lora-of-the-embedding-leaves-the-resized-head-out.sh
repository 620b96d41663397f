#!/usr/bin/env bash
# peft 0.21.2: with LoRA on the embedding, an adapter of a resized untied model is stored without the new head rows.
#
# A model gets eight new tokens. Its embedding and its head get eight random rows each, and an adapter is trained on it.
# `save_pretrained` notices the larger vocabulary, and stores both matrices. If the embedding is among target_modules,
# the save stores the embedding and leaves the head out. So an adapter that trains more stores less. Whoever loads it
# resizes the base model in the same way, as the documentation asks. The head then has other random rows, and the logits
# of the new tokens are others. LoRA on the head leaves the embedding out in the same way. The warning at the save says
# that `save_embedding_layers` is set to True. That option with True stores no more. Nothing is raised or warned at the
# load. Tied models are right, and so are untied ones with both matrices as targets. The docstring says of the option
# "save the embedding layers". No public issue was found. Seen with peft 0.21.2, transformers 5.23.0 and torch 2.13.0.
# The figures are distances from the logits of the saved model by their norm, for old and new tokens:
#   LoRA of a layer: stored embed_tokens lm_head; old 0.0, new 0.0
#   LoRA of a layer and of the embedding: stored embed_tokens; old 0.0, new 1.4
#   the same with save_embedding_layers=True: stored embed_tokens; old 0.0, new 1.4
#   LoRA of a layer, of the embedding and of the head: stored embed_tokens lm_head; old 0.0, new 0.0
#   tied, LoRA of a layer and of the embedding: stored embed_tokens; old 0.0, new 0.0
# So store the resized base model, or make the head a target as well.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

OLD = 64
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
ids = torch.randint(0, OLD, (2, 8), generator=torch.Generator().manual_seed(0))


def folder():
    return tempfile.mkdtemp(dir=sys.argv[1])


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=ids).logits


def distance(one, two):
    return round(((one - two).norm() / two.norm()).item(), 1)


def load(base):
    model = LlamaForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(OLD + 8, mean_resizing=False)
    return model


def measure(targets, tied=False, embedding_layers="auto"):
    """Which of the two matrices are stored, and how far the logits of old and new tokens are from those saved."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=OLD, initializer_range=0.2, tie_word_embeddings=tied, **sizes)
    LlamaForCausalLM(config).save_pretrained(base := folder())
    model = get_peft_model(load(base), LoraConfig(target_modules=targets))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(path := folder(), save_embedding_layers=embedding_layers)
    with safe_open(f"{path}/adapter_model.safetensors", "pt") as file:
        whole = [name for name in file.keys() if name.endswith(("embed_tokens", "lm_head")) or ".lora_" not in name]
    stored = sorted(part for part in ("embed_tokens", "lm_head") if any(part in name for name in whole))
    right, seen = logits(model), logits(PeftModel.from_pretrained(load(base), path))
    return stored, distance(seen[..., :OLD], right[..., :OLD]), distance(seen[..., OLD:], right[..., OLD:])


both = ["embed_tokens", "lm_head"]
lookup = ["q_proj", "embed_tokens"]
seen = {
    "LoRA of a layer": measure(["q_proj"]),
    "LoRA of a layer and of the embedding": measure(lookup),
    "the same with save_embedding_layers=True": measure(lookup, embedding_layers=True),
    "LoRA of a layer, of the embedding and of the head": measure([*lookup, "lm_head"]),
    "tied, LoRA of a layer and of the embedding": measure(lookup, tied=True),
}
for title, (stored, old, new) in seen.items():
    print(f"{title}: stored {' '.join(stored)}; old {old}, new {new}")
plain, lost, asked, full, tied = seen.values()
right = plain == full == (both, 0, 0) and tied[1:] == (0, 0)
sys.exit(not (right and all(case[:2] == (["embed_tokens"], 0) and case[2] > 0.5 for case in (lost, asked))))
PY
