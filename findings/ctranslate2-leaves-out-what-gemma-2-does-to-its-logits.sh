#!/usr/bin/env bash
# ctranslate2 4.8.5: a Gemma 2 is converted without the soft cap of its logits, and Gemma 3 without its rotary scaling.
#
# Gemma 2 bounds its logits and its attention scores by a tanh. Published models say final_logit_softcapping=30 and
# attn_logit_softcapping=50. Attention scores are divided by the root of query_pre_attn_scalar, which differs from the
# size of a head in the models with 27 billion parameters, of Gemma 2 and of Gemma 3. Gemma 3 with 4 billion parameters
# or more divides the positions by 8 in its layers with full attention. The converter reads none of these four settings
# for the two classes. It reads the first for Gemma 4. So log-probabilities, sampling and beam search are those of
# another model. Each setting is tried alone here, with a value that a small model can show. Without them, both classes
# are right. The soft cap of the logits keeps their order, so greedy search gives the same first token. The converter
# accepts the config, and raises and warns nothing. It refuses a type of rotary scaling that it does not know for Llama.
# Pull request 1772 of CTranslate2 is titled "support minimum gemma 2". No page or public issue about the settings was
# found. Seen with ctranslate2 4.8.5, transformers 5.24.0 and torch 2.13.0; the figures are distances of the
# log-probabilities from those of transformers, by their norm:
#   Gemma 2, none of them: log-probabilities 0.00
#   Gemma 3, none of them: log-probabilities 0.00
#   Gemma 2, final_logit_softcapping: log-probabilities 0.08
#   Gemma 2, attn_logit_softcapping: log-probabilities 0.04
#   Gemma 2, query_pre_attn_scalar: log-probabilities 0.02
#   Gemma 3, query_pre_attn_scalar: log-probabilities 0.03
#   Gemma 3, rope_parameters: log-probabilities 0.04
# So compare the log-probabilities of a converted Gemma with those of transformers.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 ctranslate2==4.8.5 transformers==5.24.0 \
  numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
words = [*special.values(), *(f"w{number}" for number in range(4, 64))]
vocabulary = {word: number for number, word in enumerate(words)}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "<unk>")), **special)
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
plain = {"query_pre_attn_scalar": 16, "attn_logit_softcapping": None, "final_logit_softcapping": None}
rotary = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
rotary |= {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}}
ids = [5, 9, 13, 22, 31, 40, 17, 8, 11, 60, 33, 25]


@torch.no_grad()
def distance(kind, settings):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **(plain | settings))).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.3)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    exact = model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    TransformersConverter("model").convert("converted", force=True)
    generator = ctranslate2.Generator("converted", compute_type="float32", intra_threads=1)
    logs = generator.forward_batch([[words[number] for number in ids]], return_log_probs=True)
    return np.linalg.norm(np.array(logs)[0] - exact) / np.linalg.norm(exact)


seen = []
for title, kind, settings in (
    ("Gemma 2, none of them", "gemma2", {}),
    ("Gemma 3, none of them", "gemma3_text", {}),
    ("Gemma 2, final_logit_softcapping", "gemma2", {"final_logit_softcapping": 30.0}),
    ("Gemma 2, attn_logit_softcapping", "gemma2", {"attn_logit_softcapping": 5.0}),
    ("Gemma 2, query_pre_attn_scalar", "gemma2", {"query_pre_attn_scalar": 64}),
    ("Gemma 3, query_pre_attn_scalar", "gemma3_text", {"query_pre_attn_scalar": 64}),
    ("Gemma 3, rope_parameters", "gemma3_text", {"rope_parameters": rotary, "layer_types": ["full_attention"] * 2}),
):
    seen.append(distance(kind, settings))
    print(f"{title}: log-probabilities {seen[-1]:.2f}")
sys.exit(not (max(seen[:2]) < 1e-3 and min(seen[2:]) > 0.01))
PY
