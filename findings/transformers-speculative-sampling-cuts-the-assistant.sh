#!/usr/bin/env bash
# transformers 5.24.0: one call of generate cuts the head of the assistant for good, and the assistant goes on with it.
#
# `generate` takes a smaller assistant model with a tokenizer of another kind, to draft tokens. With do_sample=True it
# replaces the assistant's head by the rows of the tokens that both tokenizers have. It puts a module around the
# embedding that renumbers its input. Both stay in the model after the call. The assistant then has as many logits as
# there are common tokens, under other numbers. From its second call on, the embedding reads the last token alone, as
# one of those numbers. So a call with three tokens returns one row of logits, and a text that starts with one token
# goes on in another way. Neither is raised or warned. `generate` from three tokens raises a RuntimeError about shapes,
# and a save one about shared tensors. With do_sample=False the assistant stays as it was. Pull request 36695 of
# transformers added the cut for speed. The docstring of generate does not mention it, and no public issue was found.
# Seen with transformers 5.24.0 and torch 2.13.0:
#   untied: logits before (1, 3, 42), after (1, 1, 32); text from one token as before: False; a save: RuntimeError
#   tied: logits before (1, 3, 42), after (1, 1, 32); text from one token as before: False; a save: RuntimeError
#   do_sample=False: logits before (1, 3, 42), after (1, 3, 42); text from one token as before: True; a save: saved
# So give generate a copy of the assistant, which nothing else uses.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer(words):
    numbers = {word: number for number, word in enumerate(["<unk>", "</s>", *words])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def make(vocabulary, seed, tied):
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.3, tie_word_embeddings=tied)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 1
    return model


common = [f"w{number}" for number in range(30)]
more = [*reversed(common), *(f"x{number}" for number in range(10))]
prompt, prompt_of_assistant = (
    tokenizer(kind)("w0 w1 w2", return_tensors="pt")["input_ids"] for kind in (common, more)
)


def state(model):
    with torch.no_grad():
        model(prompt_of_assistant)
        logits = model(prompt_of_assistant).logits
        text = model.generate(prompt_of_assistant[:, -1:], do_sample=False, max_new_tokens=8)
    return tuple(logits.shape), text


seen = []
for tied, sample in ((False, True), (True, True), (False, False)):
    target, assistant = make(32, 0, tied), make(42, 1, tied)
    before, text = state(assistant)
    torch.manual_seed(0)
    target.generate(
        prompt,
        assistant_model=assistant,
        tokenizer=tokenizer(common),
        assistant_tokenizer=tokenizer(more),
        do_sample=sample,
        max_new_tokens=8,
    )
    after, other_text = state(assistant)
    try:
        assistant.save_pretrained("assistant")
        save = "saved"
    except RuntimeError:
        save = "RuntimeError"
    same = text.equal(other_text)
    seen.append((before, after, same, save))
    kind = ("tied" if tied else "untied") if sample else "do_sample=False"
    print(f"{kind}: logits before {before}, after {after}; text from one token as before: {same}; a save: {save}")
cut = ((1, 3, 42), (1, 1, 32), False, "RuntimeError")
sys.exit(seen != [cut, cut, ((1, 3, 42), (1, 3, 42), True, "saved")])
PY
