#!/usr/bin/env bash
# transformers 4.57.6: an untied BART that is saved and loaded again has random embeddings, in the encoder and the decoder.
#
# A small BART is made with tie_word_embeddings=False, which BartConfig accepts. `save_pretrained` stores the embedding
# under model.shared.weight alone, because all three tables are one parameter while the model is in memory. It keeps the
# flag false in config.json. `from_pretrained` then ties nothing: it makes two new tables for the encoder and the decoder
# and fills them with random numbers. Only a warning about newly initialized weights says so, and no error is raised.
# The saved model and its two loads compute three different things. transformers 5.23.0 loads what was saved.
# Seen with transformers 4.57.6 and torch 2.13.0:
#   stored: model.shared.weight and lm_head.weight, no embed_tokens.weight
#   loaded embeddings equal the saved ones: False False
#   two loads give the same logits: False
# So a tool that saves an untied encoder-decoder has to store each table.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==4.57.6 2>/dev/null
TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work/model" <<'PY'
import sys

import torch
from safetensors import safe_open
from transformers import BartConfig, BartForConditionalGeneration

small = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
config = BartConfig(vocab_size=100, d_model=32, max_position_embeddings=32, tie_word_embeddings=False, **small)
model = BartForConditionalGeneration(config).eval()
model.save_pretrained(sys.argv[1])
with safe_open(f"{sys.argv[1]}/model.safetensors", "pt") as file:
    stored = [name for name in file.keys() if name.endswith(("shared.weight", "embed_tokens.weight", "head.weight"))]
print("stored:", *stored)
loaded = [BartForConditionalGeneration.from_pretrained(sys.argv[1]).eval() for _ in range(2)]
kept = [again.model.encoder.embed_tokens.weight.equal(model.model.encoder.embed_tokens.weight) for again in loaded]
ids = torch.tensor([[3, 4, 5]])
with torch.no_grad():
    one, two = (again(input_ids=ids).logits for again in loaded)
print("loaded embeddings equal the saved ones:", *kept)
print("two loads give the same logits:", one.equal(two))
assert stored and not any(name.endswith("embed_tokens.weight") for name in stored)
assert not any(kept) and not one.equal(two)
PY
