#!/usr/bin/env bash
# mergekit 0.1.5: `tokensurgeon --prefix-match embed` changes the head and not the embedding, and `lm_head` the reverse.
#
# `mergekit-tokensurgeon` gives a model the tokenizer of another one. Tokens that the model lacks get computed rows. With
# --prefix-match, such a token may take the row of a token that it starts with. With --byte-match, a character and its
# byte token may stand in for each other. Both options take no, yes, embed or lm_head. The last two are swapped: embed
# copies rows into the head alone, and lm_head into the embedding alone. A tied model stores the embedding alone, so
# embed changes nothing there, and lm_head does what embed should. Only a comparison of the rows shows it. The sizes are
# right, and nothing is raised or warned. The program starts with a line that it is experimental. Its page and its help
# do not explain the two values. The newest code that was read (June 2026) has the same lines. No public issue was found.
# The script fills new tokens with zeros, so that a copied row shows. Seen with mergekit 0.1.5, transformers 5.24.0 and
# torch 2.13.0:
#   untied, --prefix-match yes: the new token has a row in the embedding True, in the head True
#   untied, --prefix-match embed: the new token has a row in the embedding False, in the head True
#   untied, --prefix-match lm_head: the new token has a row in the embedding True, in the head False
#   untied, --byte-match yes: the new token has a row in the embedding True, in the head True
#   untied, --byte-match embed: the new token has a row in the embedding False, in the head True
#   untied, --byte-match lm_head: the new token has a row in the embedding True, in the head False
#   tied, --prefix-match yes: the new token has a row in the embedding True
#   tied, --prefix-match embed: the new token has a row in the embedding False
#   tied, --prefix-match lm_head: the new token has a row in the embedding True
#   tied, --byte-match yes: the new token has a row in the embedding True
#   tied, --byte-match embed: the new token has a row in the embedding False
#   tied, --byte-match lm_head: the new token has a row in the embedding True
# So give the value of the other matrix, and compare rows afterwards.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 mergekit==0.1.5 transformers==5.24.0 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PROGRAM = pathlib.Path(sys.executable).with_name("mergekit-tokensurgeon")
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", "<0x63>"]
NEW = {"prefix": "aba", "byte": "c"}
NAMES = {"embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}


def make(name, tokens, tied):
    """A Llama of one layer, and a tokenizer with these tokens."""
    numbers = {token: number for number, token in enumerate(tokens)}
    merges = [("a", "b"), ("ab", "a")] if "aba" in numbers else [("a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges, unk_token="<unk>"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(name)
    sizes = {"vocab_size": len(tokens), "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(name)


def rows(name, match, value):
    """Whether the row of the new token is more than zeros, in each stored matrix."""
    options = [f"--{match}-match", value, "--approximation-method", "zero"]
    subprocess.run([PROGRAM, f"./{name}", "./donor", "./out", *options], check=True, capture_output=True)
    (file,) = pathlib.Path("out").glob("*.safetensors")
    stored, row = load_file(file), len(TOKENS) + list(NEW).index(match)
    return {title: bool(stored[key][row].any()) for title, key in NAMES.items() if key in stored}


torch.manual_seed(0)
make("untied", TOKENS, False)
make("tied", TOKENS, True)
make("donor", TOKENS + list(NEW.values()), False)
seen = {}
for name in ("untied", "tied"):
    for match in NEW:
        assert not any(rows(name, match, "no").values())
        for value in ("yes", "embed", "lm_head"):
            filled = rows(name, match, value)
            seen.setdefault(name, []).append(tuple(filled.values()))
            words = ", in the ".join(f"{title} {value}" for title, value in filled.items())
            print(f"{name}, --{match}-match {value}: the new token has a row in the {words}")
untied, tied = [(True, True), (False, True), (True, False)], [(True,), (False,), (True,)]
sys.exit(seen != {"untied": untied * 2, "tied": tied * 2})
PY
