#!/usr/bin/env bash
# lm-eval 0.4.13: delta weights are added twice to the matrix of a tied model, so another model is measured.
#
# A model can be published as its difference from a base. `--model_args pretrained=BASE,delta=DELTA` loads both, and
# adds them up before a task runs. The loop walks through `state_dict` of the base, which has a tied matrix under both
# names. Both names are the same memory, so the second one adds the difference once more. All other parameters are
# right. The distance of the logits from those of the tuned model is here twice as large as their own norm. Nothing is
# raised or warned, and a task gives a score. The docstring calls the weights "added to the pretrained weights". Pull
# request 1712 of lm-eval added the option, and was tried with a Llama that is untied. No public issue was found. Seen
# with lm-eval 0.4.13, transformers 5.24.0 and torch 2.13.0; distances are measured by the norm of the right logits:
#   untied: the difference was added 1.0 times to the embedding; distance of the logits 0.0
#   tied: the difference was added 2.0 times to the embedding; distance of the logits 2.19
# So add the difference by named_parameters, save the sum, and measure that.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 lm-eval==0.4.13 \
  accelerate numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import torch
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EMBEDDING, ids = "model.embed_tokens.weight", torch.arange(10)[None]
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(64)}, unk_token="w0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1", pad_token="w1")


def make(tied, seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.1, tie_word_embeddings=tied)
    )


seen = []
with torch.no_grad():
    for tied in (False, True):
        base, tuned, delta = (make(tied, seed) for seed in range(3))
        exact = tuned(ids).logits
        first, second = dict(base.named_parameters()), dict(tuned.named_parameters())
        for name, parameter in delta.named_parameters():
            parameter.copy_(second[name] - first[name])
        base.save_pretrained("base")
        tokenizer.save_pretrained("base")
        delta.save_pretrained("delta")
        measured = HFLM(pretrained="base", delta="delta", device="cpu", dtype="float32", batch_size=1).model
        added = measured.get_parameter(EMBEDDING) - first[EMBEDDING]
        times = round((added / (second[EMBEDDING] - first[EMBEDDING])).median().item(), 1)
        distance = round(((measured(ids).logits - exact).norm() / exact.norm()).item(), 2)
        seen += [times, distance]
        print(f"{'tied' if tied else 'untied'}: the difference was added {times} times to the embedding; ", end="")
        print(f"distance of the logits {distance}")
sys.exit(not (seen[:3] == [1.0, 0.0, 2.0] and seen[3] > 1))
PY
