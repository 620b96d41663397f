#!/usr/bin/env bash
# peft 0.21.2: loading a second adapter with new tokens changes what the first one computes, and the base model too.
#
# Two adapters are trained on one base model, each with eight new tokens. `save_pretrained` notices the larger
# vocabulary. It stores the embedding and the head in the adapter's file, under their names in the base model. PEFT
# describes this in "Extending the vocabulary". A load writes them into the base model, which all adapters share. So
# `load_adapter` of the second replaces the rows of the first, and `set_adapter` to the first does not return them.
# `disable_adapter` gives the base model with the second adapter's matrix. `delete_adapter` takes nothing back. LoRA of
# a layer, LoRA of the embedding and modules_to_save all do this. On a tied model, `trainable_token_indices` keeps the
# first adapter right, but not the disabled model. Nothing is raised or warned at the load. The docstring of
# load_adapter and that page do not mention it, and no public issue was found. Seen with peft 0.21.2, transformers
# 5.23.0 and torch 2.13.0. The figures are distances from the logits that the first adapter was saved with, by their
# norm. They change a little between machines:
#   LoRA of a layer, tied: loaded 0.0, second loaded 1.15, second deleted 1.15; disabled as before False
#   LoRA of a layer, untied: loaded 0.0, second loaded 1.1, second deleted 1.1; disabled as before False
#   LoRA of the embedding, tied: loaded 0.0, second loaded 0.54, second deleted 0.54; disabled as before False
#   modules_to_save, tied: loaded 0.0, second loaded 0.45, second deleted 0.45; disabled as before False
#   modules_to_save, untied: loaded 0.0, second loaded 0.48, second deleted 0.48; disabled as before False
#   trainable_token_indices, tied: loaded 0.0, second loaded 0.0, second deleted 0.0; disabled as before False
#   no new tokens: loaded 0.0, second loaded 0.0, second deleted 0.0; disabled as before True
# So give such adapters one resized base model that is saved, or a model in memory for each.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
ids = torch.randint(56, 72, (2, 8), generator=torch.Generator().manual_seed(0))


def folder():
    return tempfile.mkdtemp(dir=sys.argv[1])


def distance(one, two):
    return ((one - two).norm() / two.norm()).item()


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=ids % model.config.vocab_size).logits


def load(base, new):
    model = LlamaForCausalLM.from_pretrained(base)
    if new:
        model.resize_token_embeddings(72, mean_resizing=False)
    return model


def train(base, new, options, seed):
    """The folder of an adapter whose trained numbers are random ones, and the logits that it was saved with."""
    torch.manual_seed(seed)
    model = get_peft_model(load(base, new), LoraConfig(**options))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(path := folder())
    return path, logits(model)


def measure(options, tied, new=True):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, initializer_range=0.2, tie_word_embeddings=tied, **sizes)
    LlamaForCausalLM(config).save_pretrained(base := folder())
    (one, right), (two, _) = (train(base, new, options, seed) for seed in (1, 2))
    model = PeftModel.from_pretrained(load(base, new), one, adapter_name="one")
    figures = [distance(logits(model), right)]
    with model.disable_adapter():
        plain = logits(model)
    model.load_adapter(two, "two")
    model.set_adapter("one")
    figures.append(distance(logits(model), right))
    with model.disable_adapter():
        same = distance(logits(model), plain) < 0.01
    model.delete_adapter("two")
    return [*figures, distance(logits(model), right)], same


layer = {"target_modules": ["q_proj"]}
embedding = {"target_modules": ["q_proj", "embed_tokens"]}
copies = {**layer, "modules_to_save": ["embed_tokens"]}
rows = {**layer, "trainable_token_indices": list(range(64, 72))}
wrong = {
    "LoRA of a layer, tied": measure(layer, True),
    "LoRA of a layer, untied": measure(layer, False),
    "LoRA of the embedding, tied": measure(embedding, True),
    "modules_to_save, tied": measure(copies, True),
    "modules_to_save, untied": measure(copies, False),
}
token_rows, control = measure(rows, True), measure(layer, True, new=False)
for title, (figures, same) in {**wrong, "trainable_token_indices, tied": token_rows, "no new tokens": control}.items():
    loaded, second, deleted = (round(figure, 2) for figure in figures)
    print(f"{title}: loaded {loaded}, second loaded {second}, second deleted {deleted}; disabled as before {same}")
seen = all(first < 0.01 and min(rest) > 0.2 and not same for (first, *rest), same in wrong.values())
seen &= max(token_rows[0]) < 0.01 and not token_rows[1] and max(control[0]) < 0.01 and control[1]
sys.exit(not seen)
PY
