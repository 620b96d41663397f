#!/usr/bin/env bash
# transformers 5.24.0: sampling with an assistant that has other tokens does not follow the target model.
#
# Speculative sampling accepts a drafted token by p / q, the probabilities in the target and in the assistant. The
# result then has the distribution of the target. For an assistant with another tokenizer, transformers names the paper
# "Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies". It keeps the rows of the assistant's head
# whose tokens the target has too, in the order of `get_vocab`. This is the order of a hash table. It then puts the
# logits of these rows to the tokens in the order of their numbers. So q belongs to other tokens than those that were
# drafted. What the assistant likes is accepted far too often, and the text is neither that of the target nor warned of.
# With both orders made one by hand, the error was that of counting. One more token in the assistant's tokenizer is
# enough. With one tokenizer for both models the distribution is right. Issue 47932 of transformers, closed, is about a
# q before top_k; no public issue about the order was found. Seen with transformers 5.24.0 and torch 2.13.0. The figures
# are the total variation between 400 sampled first tokens and their probabilities. They change between runs, from 0.3
# to 0.6:
#   no assistant: 0.12
#   assistant with the same tokenizer: 0.09
#   assistant with one more token: 0.36
# So sample with an assistant of the same tokenizer, or with do_sample=False.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SAMPLES, common = 400, [f"w{number}" for number in range(60)]


def tokenizer(words):
    numbers = {word: number for number, word in enumerate(["<unk>", "</s>", *words])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def make(vocabulary, seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.5)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 1
    return model


def variation(**options):
    torch.manual_seed(0)
    counts = torch.zeros(62)
    for _ in range(SAMPLES):
        text = target.generate(prompt, do_sample=True, top_k=0, max_new_tokens=2, **options)
        counts[text[0, 3]] += 1
    return (counts / SAMPLES - exact).abs().sum().item() / 2


words, target = tokenizer(common), make(62, 0)
prompt = words("w0 w1 w2", return_tensors="pt")["input_ids"]
with torch.no_grad():
    exact = target(prompt).logits[0, -1].softmax(-1)
    another = {"tokenizer": words, "assistant_tokenizer": tokenizer([*common, "x"])}
    seen = {
        "no assistant": variation(),
        "assistant with the same tokenizer": variation(assistant_model=make(62, 1)),
        "assistant with one more token": variation(assistant_model=make(63, 1), **another),
    }
for kind, figure in seen.items():
    print(f"{kind}: {figure:.2f}")
alone, same, more = seen.values()
sys.exit(not (max(alone, same) < 0.15 and more > 0.25))
PY
