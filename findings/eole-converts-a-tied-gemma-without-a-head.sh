#!/usr/bin/env bash
# eole 0.6.4: a tied Gemma that transformers 4 saved is converted without a head, and its logits come from old memory.
#
# transformers 4 leaves a flag out of config.json if it equals the default of the class. Gemma 2 and Gemma 3 are tied
# by default, so their files have no tie_word_embeddings. They store no lm_head.weight either. The table of eole says
# that both classes share the matrix. `eole convert HF` then overwrites that entry with the flag in config.json, and
# takes false if it is absent. So the converted config says untied, and the converted file has no head. eole loads it,
# and the head keeps what was in its memory: in some runs NaN, in others numbers in the thousands. Nothing is raised.
# A line of level INFO names generator.weight as missing. A right conversion gets the same line, and another about
# sharing. With the flag in config.json, as transformers 5.24.0 writes it, the same weights are converted rightly. A
# Llama is untied by default, so its files have the flag if it is tied. Pull request 123 of eole lets the flag decide.
# No public issue about its absence was found. To see it in each run, torch fills new memory with NaN here, an option
# of its deterministic mode. Seen with eole 0.6.4, transformers 4.57.6 and torch 2.13.0; the figures are distances
# from the logits of transformers, by their norm:
#   Gemma2ForCausalLM, saved by transformers 4: flag None; shared False; head of NaN; logits nan
#   Gemma2ForCausalLM, flag added: flag True; shared True; head of numbers; logits 0.00
#   Gemma3ForCausalLM, saved by transformers 4: flag None; shared False; head of NaN; logits nan
#   Gemma3ForCausalLM, flag added: flag True; shared True; head of numbers; logits 0.00
#   LlamaForCausalLM, saved by transformers 4: flag True; shared True; head of numbers; logits 0.00
# So write "tie_word_embeddings": true into config.json before the conversion.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 eole==0.6.4 transformers==4.57.6 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import json
import logging
import pathlib
import subprocess
import sys

import torch
from eole.config.run import PredictConfig
from eole.models.model import DecoderModel
from tokenizers import Tokenizer, models
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

logging.disable(logging.CRITICAL)
program = pathlib.Path(sys.executable).with_name("eole")
ids = torch.arange(3, 23)[None]
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
words = [*special.values(), *(f"t{number}" for number in range(3, 64))]
tokens = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, **special)
special_ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
gemma = {**sizes, **special_ids, "query_pre_attn_scalar": 8}


def fill_new_memory(fill):
    """With `fill`, a part of the model that the checkpoint does not fill is NaN."""
    torch.use_deterministic_algorithms(fill)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def convert(directory):
    """Whether the converted config shares the matrix, whether the head has numbers, and how far the logits are."""
    converted = f"{directory}-converted"
    command = [program, "convert", "HF", "--model_dir", directory, "--output", converted]
    subprocess.run(command, check=True, capture_output=True)
    fill_new_memory(True)
    options = PredictConfig(model_path=[converted], src="text", compute_dtype="fp32", gpu_ranks=[], world_size=0)
    model, _, config = DecoderModel.for_inference(options, device_id=-1)
    fill_new_memory(False)
    with torch.no_grad():
        logits = model.eval().generator(model(ids, None, torch.tensor([ids.shape[1]]))[0])
    head = model.generator.weight
    far = float((logits - exact).norm() / exact.norm())
    return config.share_decoder_embeddings, bool(head.isnan().all()), bool(head.isfinite().all()), far


seen = []
for model_class, config in (
    (Gemma2ForCausalLM, Gemma2Config(**gemma, **caps)),
    (Gemma3ForCausalLM, Gemma3TextConfig(**gemma)),
    (LlamaForCausalLM, LlamaConfig(**sizes, **special_ids, tie_word_embeddings=True)),
):
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        exact = model(ids).logits
    directory = model_class.__name__
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    path = pathlib.Path(directory, "config.json")
    for word in ("saved by transformers 4", "flag added"):
        stored = json.loads(path.read_text())
        if word == "flag added":
            if "tie_word_embeddings" in stored:
                continue
            stored["tie_word_embeddings"] = True
            path.write_text(json.dumps(stored))
        flag = stored.get("tie_word_embeddings")
        shared, empty, full, far = convert(directory)
        text = "of NaN" if empty else "of numbers" if full else "of both"
        print(f"{directory}, {word}: flag {flag}; shared {shared}; head {text}; logits {far:.2f}")
        seen.append((flag, shared, empty, full, far < 1e-3))
wrong, right = (None, False, True, False, False), (True, True, False, True, True)
sys.exit(seen != [wrong, right, wrong, right, right])
PY
