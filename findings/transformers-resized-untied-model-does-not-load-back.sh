#!/usr/bin/env bash
# transformers 5.24.0: an untied model that went through resize_token_embeddings does not come back from its own save.
#
# Three small models get tie_word_embeddings=False. Each is saved and loaded, first as it is, then after
# `resize_token_embeddings`. As they are, all three come back. After a resize, even to the size that they have, the saved
# BERT has no cls.predictions.decoder.bias, and the loaded one has zeros there. RoBERTa grows by eight rows without its
# lm_head.bias, and its save is refused. BART has separate tables in the encoder and the decoder. The resize replaces both
# by model.shared, which such a model does not use, so it computes something else at once. The save then stores
# model.shared alone, and the loaded encoder and decoder have random tables. The resize makes one parameter of names that
# the class ties when the flag is true; `save_pretrained` stores one of them, and `from_pretrained` follows the flag. A
# report of missing names is all that is said. Of 366 classes, built small with the flag false, 34 lose a bias and 18 lose
# tables in these ways, and the saves of 16 are refused. With the flag true, the three models come back. The documentation
# of resize_token_embeddings does not mention it, and no public issue was found. In 4.57.6, BART fails without a resize
# (transformers-untied-bart-loses-its-embeddings.sh). Seen with transformers 5.24.0 and torch 2.13.0:
#   BertForMaskedLM: a resize to the same size keeps the logits: True
#   BertForMaskedLM: saved as it is: same logits; 100 rows to 100: other logits; 100 rows to 108: other logits
#   RobertaForMaskedLM: a resize to the same size keeps the logits: True
#   RobertaForMaskedLM: saved as it is: same logits; 100 rows to 100: same logits; 100 rows to 108: RuntimeError
#   BartForConditionalGeneration: a resize to the same size keeps the logits: False
#   BartForConditionalGeneration: saved as it is: same logits; 100 rows to 100: other logits; 100 rows to 108: other logits
# So compare the outputs of an untied model before and after a resize, and load each save again at once.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 2>/dev/null
TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1 "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

small = {"vocab_size": 100, "max_position_embeddings": 40}
encoder = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
models = {
    BertForMaskedLM: (BertConfig, encoder),
    RobertaForMaskedLM: (RobertaConfig, encoder),
    BartForConditionalGeneration: (BartConfig, {"d_model": 32, **layers}),
}


def outputs(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[3, 4, 5]])).logits


def make(kind, tied):
    torch.manual_seed(0)
    config, sizes = models[kind]
    model = kind(config(**small, **sizes, tie_word_embeddings=tied)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def reload(kind, tied, rows):
    """What the model is after a resize to ``rows``, a save and a load."""
    model = make(kind, tied)
    if rows:
        model.resize_token_embeddings(rows)
    model.save_pretrained(f"{sys.argv[1]}/model")
    try:
        loaded = kind.from_pretrained(f"{sys.argv[1]}/model").eval()
    except RuntimeError:
        return "RuntimeError"
    return "same logits" if outputs(model).allclose(outputs(loaded), atol=1e-4) else "other logits"


sizes = {None: "saved as it is", 100: "100 rows to 100", 108: "100 rows to 108"}
seen, tied = [], set()
for kind in models:
    model = make(kind, False)
    before = outputs(model)
    model.resize_token_embeddings(100)
    seen.append((outputs(model).allclose(before, atol=1e-4), *(reload(kind, False, rows) for rows in sizes)))
    tied |= {reload(kind, True, rows) for rows in sizes}
    print(f"{kind.__name__}: a resize to the same size keeps the logits: {seen[-1][0]}")
    print(f"{kind.__name__}:", "; ".join(f"{size}: {state}" for size, state in zip(sizes.values(), seen[-1][1:])))
same, other = "same logits", "other logits"
want = [(True, same, other, other), (True, same, same, "RuntimeError"), (False, same, other, other)]
sys.exit(tied != {same} or seen != want)
PY
