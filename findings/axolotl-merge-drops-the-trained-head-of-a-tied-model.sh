#!/usr/bin/env bash
# axolotl 0.19.0: the default merge of an adapter leaves out a trained head, LoRA of the embedding, and rows of tokens.
#
# `axolotl merge-lora` does not load the model by default (merge_method: memory_efficient). It walks through the tensors
# of the base files, and looks in the adapter for something to add to each. It knows the LoRA of a linear layer, and a
# whole matrix that replaces the one in the file. LoRA of an embedding has other names, so it is left out. So are the
# rows that peft_trainable_token_indices trained. A tied model has no head in its file. A head that was trained apart
# has nothing there to replace, and the config still says tied. axolotl itself asks for such a head: a new special token
# needs embed_tokens and lm_head in lora_modules_to_save. PEFT warns in training that a tied pair is trained apart. The
# merge itself warns of such parts only if it finds nothing else. It ends with the number of tensors that it changed. A
# PEFT merge in memory, as with merge_method: legacy, is right in each case. The documentation of axolotl does not
# mention it where it was searched, and no public issue was found. Pull request 9331 of unsloth mends the loss of such a
# head in unsloth's merge. The script calls the function of the command. Seen with axolotl 0.19.0, transformers 5.16.1,
# peft 0.20.0 and torch 2.13.0; the figures are distances of the logits from those of the trained model, by their norm:
#   untied, layers: axolotl 0.00, PEFT 0.00
#   untied, layers and LoRA of embedding and head: axolotl 0.95, PEFT 0.00
#   untied, layers and rows of tokens: axolotl 1.08, PEFT 0.00
#   tied, layers and rows of tokens: axolotl 0.92, PEFT 0.00
#   untied, layers and whole embedding and head: axolotl 0.00, PEFT 0.00
#   tied, layers and whole embedding and head: axolotl 0.91, PEFT 0.00
#   warnings of the merge: 0
# So set merge_method: legacy for such adapters, or compare the merged model with the trained one before it is released.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.16.1 peft==0.20.0 \
  accelerate==1.13.0 colorama requests 2>/dev/null
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps axolotl==0.19.0 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import logging
import sys
from pathlib import Path

import torch
from axolotl.cli.utils.lora_merge import merge_lora_sharded_efficient
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

texts = torch.arange(1, 25).reshape(2, 12)
layers = ["q_proj", "v_proj"]
tables = ["embed_tokens", "lm_head"]
warnings = []
log = logging.getLogger("axolotl.cli.utils.lora_merge")
log.propagate = False
log.addFilter(lambda record: warnings.append(record) if record.levelno >= logging.WARNING else False)


@torch.no_grad()
def logits(model):
    return model.eval()(texts).logits


def distance(first, second):
    return round(((first - second).norm() / second.norm()).item(), 2)


def measure(number, tied, options):
    """Train an adapter, merge it with axolotl and with PEFT. Return both distances from the trained model."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    made = LlamaConfig(vocab_size=64, **sizes, num_key_value_heads=2, initializer_range=0.1, tie_word_embeddings=tied)
    base, adapter, merged = (f"{name}{number}" for name in ("base", "adapter", "merged"))
    AutoModelForCausalLM.from_config(made).save_pretrained(base)
    options = LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": layers, **options})
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), options)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        model(input_ids=texts, labels=texts).loss.backward()
        optimizer.step()
    trained = logits(model)
    model.save_pretrained(adapter)
    Path(merged).mkdir()
    merge_lora_sharded_efficient(base, adapter, merged)
    by_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload()
    loaded = AutoModelForCausalLM.from_pretrained(merged)
    return distance(logits(loaded), trained), distance(logits(by_peft), trained)


cases = {
    "untied, layers": (False, {}),
    "untied, layers and LoRA of embedding and head": (False, {"target_modules": layers + tables}),
    "untied, layers and rows of tokens": (False, {"trainable_token_indices": [*range(1, 25)]}),
    "tied, layers and rows of tokens": (True, {"trainable_token_indices": [*range(1, 25)]}),
    "untied, layers and whole embedding and head": (False, {"modules_to_save": tables}),
    "tied, layers and whole embedding and head": (True, {"modules_to_save": tables}),
}
seen = {}
for number, (name, case) in enumerate(cases.items()):
    seen[name] = by_axolotl, by_peft = measure(number, *case)
    print(f"{name}: axolotl {by_axolotl:.2f}, PEFT {by_peft:.2f}")
print(f"warnings of the merge: {len(warnings)}")
right = {"untied, layers", "untied, layers and whole embedding and head"}
expected = [(by_axolotl < 0.05) == (name in right) and by_peft < 0.05 for name, (by_axolotl, by_peft) in seen.items()]
sys.exit(not all(expected) or len(warnings) > 0)
PY
