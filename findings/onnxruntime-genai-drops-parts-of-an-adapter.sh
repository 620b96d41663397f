#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: the model builder exports an adapter without its parts for the embedding, the head and DoRA.
#
# The builder has the option adapter_path, "Use this option for LoRA models". It loads the base model, lets PEFT put the
# adapter on it, and writes an ONNX graph with the low-rank parts of the linear layers. It looks for nothing else. So the
# magnitudes of DoRA, the biases of lora_bias and trained rows of tokens are left out, and so is LoRA of an embedding.
# With a tied model, the matrix of the head is written for both. So a head in `modules_to_save` gets into the embedding
# too, and a trained embedding is lost. The builder ends normally, the graph runs, and its outputs are neither those of the
# adapted model nor those of the base. LoRA of a head gives a graph that ONNX Runtime refuses. Token rows on a tied model
# raise. Pull request 955 of onnxruntime-genai added the option; its help says nothing of this, and no public issue was
# found. Seen with onnxruntime-genai 0.18.0, onnxruntime 1.32.0, peft 0.21.2, transformers 5.24.0 and torch 2.13.0; the
# figures are the distances of the logits from those of the adapted model, by their norm:
#   LoRA of linear layers: untied 0.0, tied 0.0
#   DoRA: untied 0.7, tied 0.71
#   LoRA with biases: untied 0.6, tied 0.6
#   LoRA of the embedding: untied 1.6, tied 1.61
#   LoRA of the head: untied raises, tied raises
#   head in modules_to_save: untied 0.0, tied 1.47
#   embedding in modules_to_save: untied 0.0, tied 1.34
#   token rows: untied 0.7, tied raises
# So merge the adapter with PEFT first, and build from the merged model.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 \
    onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0 numpy sympy requests 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import contextlib
import io
import sys

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]
base, adapter, graph, cache = (f"{folder}/{name}" for name in ("base", "adapter", "graph", "cache"))
sizes = {"vocab_size": 130, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
ids = torch.arange(3, 13)[None]
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(sizes["vocab_size"])}, unk_token="t0"))


def adapted(option, tied):
    """Save a base model and an adapter with made-up training. Return the logits of both together."""
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=tied, initializer_range=0.1)
    LlamaForCausalLM(config).save_pretrained(base)
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2").save_pretrained(base)
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), LoraConfig(r=4, task_type="CAUSAL_LM", **option)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(adapter)
        return model(ids).logits.numpy()


def exported():
    """Build a graph of the base model and the adapter. Return its logits."""
    with contextlib.redirect_stdout(io.StringIO()):
        options = parse_extra_options(None, base, graph, "fp32", "cpu", cache, [f"adapter_path={adapter}"])
        create_model(None, base, graph, "fp32", "cpu", cache, **options)
    session = ort.InferenceSession(f"{graph}/model.onnx", providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
    feeds |= {node.name: np.zeros((1, 2, 0, 32), np.float32) for node in session.get_inputs() if "past" in node.name}
    return session.run(["logits"], feeds)[0]


def distance(option, tied):
    wanted = adapted(option, tied)
    try:
        return round(float(np.linalg.norm(exported() - wanted) / np.linalg.norm(wanted)), 2)
    except Exception:
        return "raises"


linear = {"target_modules": ["o_proj"]}
options = {
    "LoRA of linear layers": {"target_modules": "all-linear"},
    "DoRA": {**linear, "use_dora": True},
    "LoRA with biases": {**linear, "lora_bias": True},
    "LoRA of the embedding": {"target_modules": ["o_proj", "embed_tokens"]},
    "LoRA of the head": {"target_modules": ["o_proj", "lm_head"]},
    "head in modules_to_save": {**linear, "modules_to_save": ["lm_head"]},
    "embedding in modules_to_save": {**linear, "modules_to_save": ["embed_tokens"]},
    "token rows": {**linear, "trainable_token_indices": [3, 4, 5]},
}
seen = []
for name, option in options.items():
    pair = [distance(option, tied) for tied in (False, True)]
    print(f"{name}: untied {pair[0]}, tied {pair[1]}")
    seen.append(["raises" if value == "raises" else "right" if value < 0.01 else "wrong" for value in pair])
right, wrong, raises = (["right"] * 2, ["wrong"] * 2, ["raises"] * 2)
silent = [wrong, wrong, wrong, raises, ["right", "wrong"], ["right", "wrong"], ["wrong", "raises"]]
sys.exit(seen != [right, *silent])
PY
