#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: any linear layer with as many outputs as the vocabulary has tokens is taken for the head.
#
# The model builder walks through the modules of a model and writes ONNX nodes for them. It knows the head by its number
# of outputs. A model of bytes has 256 tokens, and a width of 256 is usual for a small one, so each of its projections
# looks like a head. The builder writes the head when it meets the first of them. So the head reads the hidden state in
# the middle of the first layer, where the MLP reads it, and all layers after it count for nothing. The matrix is the
# right one, because the true head comes last. The same happens if the MLP is as wide as the vocabulary, with a tied or
# an untied model. The builder ends normally and the graph runs. Its log says "Reading LM head" more than
# once. One more row in the vocabulary makes the graph right. The help of the builder says nothing of it, and no public
# issue was found. Seen with onnxruntime-genai 0.18.0, onnxruntime 1.32.0, transformers 5.24.0 and torch 2.13.0:
#   256 tokens, width 256, tied: heads in the log 11; tokens predicted like the model 0 of 10
#   256 tokens, width 256, untied: heads in the log 11; tokens predicted like the model 0 of 10
#   256 tokens, MLP 256, tied: heads in the log 5; tokens predicted like the model 0 of 10
#   256 tokens, MLP 256, untied: heads in the log 5; tokens predicted like the model 0 of 10
#   257 tokens, width 256, tied: heads in the log 1; tokens predicted like the model 10 of 10
#   257 tokens, width 256, untied: heads in the log 1; tokens predicted like the model 10 of 10
# So compare the logits of a built graph with those of the model, or resize the vocabulary by one row first.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 onnxruntime-genai==0.18.0 \
    onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0 numpy sympy requests 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import contextlib
import io
import sys

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

base, graph, cache = (f"{sys.argv[1]}/{name}" for name in ("base", "graph", "cache"))
ids = torch.arange(3, 13)[None]


def build(tokens, width, mlp, tied):
    """Build a graph. Return how many heads the log has, and how many tokens the graph predicts like the model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=tokens, **sizes, tie_word_embeddings=tied, initializer_range=0.1)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(base)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(tokens)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2").save_pretrained(base)
    with contextlib.redirect_stdout(io.StringIO()) as log:
        options = parse_extra_options(None, base, graph, "fp32", "cpu", cache, [])
        create_model(None, base, graph, "fp32", "cpu", cache, **options)
    session = ort.InferenceSession(f"{graph}/model.onnx", providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
    past = np.zeros((1, 2, 0, width // 2), np.float32)
    feeds |= {node.name: past for node in session.get_inputs() if "past" in node.name}
    with torch.no_grad():
        wanted = model(ids).logits.numpy().argmax(-1)
    same = int((session.run(["logits"], feeds)[0].argmax(-1) == wanted).sum())
    return log.getvalue().count("Reading LM head"), same


seen = []
for label, *sizes in (("width 256", 256, 256, 512), ("MLP 256", 256, 64, 256), ("width 256", 257, 256, 512)):
    for tied in (True, False):
        heads, same = build(*sizes, tied)
        print(
            f"{sizes[0]} tokens, {label}, {'tied' if tied else 'untied'}: heads in the log {heads}; "
            f"tokens predicted like the model {same} of 10"
        )
        seen.append((heads, same > 2))
sys.exit(seen != [(11, False)] * 2 + [(5, False)] * 2 + [(1, True)] * 2)
PY
