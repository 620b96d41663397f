#!/usr/bin/env bash
# transformers 5.24.0: an Inkling2 that was resized for new tokens loads without the rows of its head for them.
#
# Inkling2 has two sizes in its config. The embedding has vocab_size rows. The head has unpadded_vocab_size rows, fewer, and
# a checkpoint stores it with vocab_size rows. `resize_token_embeddings` gives the embedding and the head the new number of
# rows, and sets vocab_size alone. `save_pretrained` stores all rows. `from_pretrained` cuts the stored head down to
# unpadded_vocab_size rows, and the embedding stays whole. So the new tokens can be read and never predicted, and their
# trained rows are gone after the next save, which writes zeros there. Nothing is raised or warned, and the loading report
# is empty. The docstrings of Inkling2 say nothing about resizing, and no public issue was found. Seen with
# transformers 5.24.0 and torch 2.13.0:
#   made: embedding 112 rows, head 100, logits 100
#   resized to 120: embedding 120 rows, head 120, logits 120
#   stored: embedding 120 rows, head 120
#   loaded: embedding 120 rows, head 100, logits 100; names in the loading report: 0
#   stored again: head 120 rows, of which zero: 20
# So set config.unpadded_vocab_size to the new number as well, before the model is saved.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 2>/dev/null
TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1 "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
from safetensors.torch import load_file
from transformers import Inkling2ForCausalLM, Inkling2TextConfig

heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
sizes = {
    **heads, **{f"swa_{name}": count for name, count in heads.items()},
    "vocab_size": 112, "unpadded_vocab_size": 100, "hidden_size": 64, "moe_intermediate_size": 64, "d_rel": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "max_position_embeddings": 128,
}  # fmt: skip
types = ["hybrid_sliding", "hybrid"]


def rows(model):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 2, 3]])).logits
    return len(model.get_input_embeddings().weight), len(model.lm_head.weight), logits.shape[-1]


def save(model):
    model.save_pretrained(f"{sys.argv[1]}/model")
    stored = load_file(f"{sys.argv[1]}/model/model.safetensors")
    return stored["model.llm.embed.weight"], stored["model.llm.unembed.weight"]


config = Inkling2TextConfig(**sizes, layer_types=types, bos_token_id=0, eos_token_id=1, pad_token_id=None)
model = Inkling2ForCausalLM(config).eval()
seen = [rows(model)]
model.resize_token_embeddings(120)
seen.append(rows(model))
for word, (embedding, head, logits) in zip(("made", "resized to 120"), seen):
    print(f"{word}: embedding {embedding} rows, head {head}, logits {logits}")
embedding, head = save(model)
print(f"stored: embedding {len(embedding)} rows, head {len(head)}")
loaded, report = Inkling2ForCausalLM.from_pretrained(f"{sys.argv[1]}/model", output_loading_info=True)
names = sum(map(len, report.values()))
seen.append(rows(loaded.eval()))
print(f"loaded: embedding {seen[2][0]} rows, head {seen[2][1]}, logits {seen[2][2]}; names in the loading report: {names}")
_, head = save(loaded)
zeros = int((head == 0).all(1).sum())
print(f"stored again: head {len(head)} rows, of which zero: {zeros}")
sys.exit((seen, names, zeros) != ([(112, 100, 100), (120, 120, 120), (120, 100, 100)], 0, 20))
PY
