#!/usr/bin/env bash
# vocabslim 0.1.4: new rows of a slimmed Llama contain the row of <s>, and the check of the result looks at the original.
#
# vocabslim gives a causal language model a smaller tokenizer. A token that the old vocabulary has keeps its row. A new
# token gets the mean of the rows of its old pieces. To find the pieces, vocabslim calls the old tokenizer with its
# default options. The tokenizer of a Llama puts <s> in front of each text. So <s> counts as a piece: it is a half of each
# token that has one other piece, and a third of those that have two. This holds for the embedding, and for the head of
# an untied model. A tokenizer that adds nothing, as that of Qwen2.5, gives right rows. The README lists Llama-3.2-1B
# among its results, and its tokenizer adds such a token. `check` should compare "outputs between original and slimmed
# models". It loads the original twice, and prints its text as that of the slimmed model. So the two agree, even if the
# slimmed model is all zeros. The saved model is in bfloat16, whatever the original was in. Nothing is raised or warned.
# The README mentions none of this, and no public issue was found. Seen with vocabslim 0.1.4, transformers 5.24.0 and
# torch 2.13.0:
#   tied, tokenizer adds nothing: new row is the mean of its pieces True, of its pieces and <s> False
#   tied, tokenizer adds <s>: new row is the mean of its pieces False, of its pieces and <s> True
#   untied, tokenizer adds nothing: new row is the mean of its pieces True, of its pieces and <s> False
#   untied, tokenizer adds <s>: new row is the mean of its pieces False, of its pieces and <s> True
#   head of the untied model, tokenizer adds <s>: mean of its pieces False, of its pieces and <s> True
#   saved in torch.float32, slimmed to torch.bfloat16
#   slimmed model set to zeros: check prints two equal texts True
# So take such a post-processor out of the tokenizer first, and compare the saved model by hand.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 vocabslim==0.1.4 transformers==5.24.0 \
  2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import logging
import sys

import torch
from tokenizers import Tokenizer, models, processors
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vocabslim import VocabSlim

OLD = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e", "f"]
NEW = ["<unk>", "<s>", "</s>", "f", "a", "b", "ab"]
texts = []


class Texts(logging.Handler):
    """Keeps the texts that `check` prints."""

    def emit(self, record):
        title, _, text = record.getMessage().partition(" output: ")
        if text:
            texts.append((title, text))


def save_tokenizer(name, tokens, first):
    numbers = {token: number for number, token in enumerate(tokens)}
    merges = [("a", "b")] if "ab" in numbers else []
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges, unk_token="<unk>"))
    if first:
        template = {"single": "<s> $A", "special_tokens": [("<s>", numbers["<s>"])]}
        tokenizer.post_processor = processors.TemplateProcessing(**template)
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(name)


def matrices(name):
    """The embedding and the head of a saved model."""
    model = AutoModelForCausalLM.from_pretrained(name)
    return [layer.weight.detach().float() for layer in (model.model.embed_tokens, model.lm_head)], model.dtype


def means(new, old):
    """Whether the row of the new token is the mean of its pieces, without and with <s>."""
    pieces = [OLD.index(token) for token in ("a", "b")]
    row = new[NEW.index("ab")]
    return [bool(row.allclose(old[rows].mean(0), atol=1e-3)) for rows in (pieces, [OLD.index("<s>"), *pieces])]


seen = []
logging.getLogger("vocabslim.core").addHandler(Texts())
save_tokenizer("new", NEW, False)
for kind, tied in (("tied", True), ("untied", False)):
    for title, first in (("adds nothing", False), ("adds <s>", True)):
        torch.manual_seed(0)
        sizes = {"vocab_size": len(OLD), "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
        LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied)).save_pretrained("old")
        save_tokenizer("old", OLD, first)
        slim = VocabSlim("old", "slim", new_tokenizer_name_or_path="new", device="cpu")
        slim.prune()
        (old, old_type), (new, new_type) = matrices("old"), matrices("slim")
        assert new[0][NEW.index("f")].allclose(old[0][OLD.index("f")], atol=1e-3)
        plain, mixed = means(new[0], old[0])
        seen.append((plain, mixed))
        print(f"{kind}, tokenizer {title}: new row is the mean of its pieces {plain}, of its pieces and <s> {mixed}")
head = means(new[1], old[1])
print(f"head of the untied model, tokenizer adds <s>: mean of its pieces {head[0]}, of its pieces and <s> {head[1]}")
print(f"saved in {old_type}, slimmed to {new_type}")
model = AutoModelForCausalLM.from_pretrained("slim")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
model.save_pretrained("slim")
slim.check("ab")
(original, first), (slimmed, second) = texts
assert (original, slimmed) == ("Original", "Slimmed")
print(f"slimmed model set to zeros: check prints two equal texts {first == second}")
right = seen == [(True, False), (False, True)] * 2 and head == [False, True]
sys.exit(not (right and (old_type, new_type) == (torch.float32, torch.bfloat16) and first == second))
PY
