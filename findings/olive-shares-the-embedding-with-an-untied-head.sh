#!/usr/bin/env bash
# olive-ai 0.13.0: a graph surgery gives an untied model the embedding as its head, and drops a bias of the head.
#
# Two graph surgeries of Olive make a model with a large vocabulary smaller. `QuantizeEmbeddingInt8` rounds the
# embedding to 8 bits. `ShareEmbeddingLmHead` then lets the head read the same codes and scales. Its docstring says
# that it shares the weight with lm_head, "eliminating duplicate storage". It does not ask whether the two matrices
# are equal. So the trained head of an untied model is deleted, and the logits are products with the embedding. Both
# matrices have the same shape, so the graph runs. MatMulNBits has an input for a bias too. The new node does not get
# it, so a tied model loses the bias of its head. The graph returns without an error. A line of the level INFO says
# that the head now shares the embedding. `TieWordEmbeddings` of the same package compares the two first, and changes
# nothing here. Public recipes for Qwen3.5-2B list the two surgeries behind the model builder, so a copy for a larger
# model has them. Pull request 2464 of Olive added both. No page or public issue about untied models was found. Seen
# with olive-ai 0.13.0, onnxruntime-genai 0.18.0, onnxruntime 1.32.0, transformers 5.24.0 and torch 2.13.0. The graphs
# have matrices of 4 bits. The figures are distances from the logits in float, by their norm. Behind them is the
# number of tokens, of 20, that the graph predicts as the float model does:
#   tied: built 0.22 (13), int8 0.22 (14), ShareEmbeddingLmHead 0.21 (12), TieWordEmbeddings 0.22 (14)
#   untied: built 0.22 (15), int8 0.21 (15), ShareEmbeddingLmHead 1.37 (0), TieWordEmbeddings 0.21 (15)
#   tied, bias: built 0.08 (15), int8 0.08 (15), ShareEmbeddingLmHead 0.94 (0), TieWordEmbeddings 0.08 (15)
# So compare the two matrices before this surgery, or use TieWordEmbeddings.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 olive-ai==0.13.0 \
    onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0 numpy sympy requests 2>/dev/null
export OLIVE_DISABLE_TELEMETRY=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
"$work/venv/bin/python" -W ignore - "$work" 2>/dev/null <<'PY'
import contextlib
import io
import logging
import sys

import numpy as np
import onnx
import onnxruntime as ort
import torch
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.graph_surgeries import GraphSurgeries
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logging.disable(logging.CRITICAL)
work = sys.argv[1]
ids = torch.arange(3, 23)[None]
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
bias = np.random.default_rng(0).normal(size=200).astype(np.float32) * 2


def build(kind):
    """Write a graph with matrices of 4 bits. Return its path and the logits of the float model."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=200, **sizes, tie_word_embeddings="untied" not in kind, initializer_range=0.1)
    model = LlamaForCausalLM(config).eval()
    base, graph, cache = (f"{work}/{kind}-{name}" for name in ("base", "graph", "cache"))
    model.save_pretrained(base)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(200)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2").save_pretrained(base)
    options = parse_extra_options(None, base, graph, "int4", "cpu", cache, ["shared_embeddings=false"])
    create_model(None, base, graph, "int4", "cpu", cache, **options)
    with torch.no_grad():
        exact = model(ids).logits.numpy()
    path = f"{graph}/model.onnx"
    if "bias" in kind:
        loaded = onnx.load(path)
        head = next(node for node in loaded.graph.node if node.name.startswith("/lm_head/"))
        head.input.extend([""] * (5 - len(head.input)) + ["lm_head.bias"])
        loaded.graph.initializer.append(onnx.numpy_helper.from_array(bias, "lm_head.bias"))
        onnx.save(loaded, path)
        exact = exact + bias
    return path, exact


def surgeries(path, *names):
    """Apply the named surgeries of Olive to a graph."""
    surgeons = {"surgeries": [{"surgeon": name} for name in names]}
    step = create_pass_from_dict(GraphSurgeries, surgeons, disable_search=True)
    return step.run(ONNXModelHandler(path), path.replace("-graph", f"-{len(names)}-{names[-1]}")).model_path


def measure(path, exact):
    """How far the logits of a graph are from those of the float model, and how many tokens it predicts alike."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
    past = np.zeros((1, 2, 0, 32), np.float32)
    feeds |= {node.name: past for node in session.get_inputs() if "past" in node.name}
    logits = session.run(["logits"], feeds)[0]
    far = float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))
    return far, int((logits.argmax(-1) == exact.argmax(-1)).sum())


seen = {}
first, share, tie = "QuantizeEmbeddingInt8", "ShareEmbeddingLmHead", "TieWordEmbeddings"
for kind in ("tied", "untied", "tied, bias"):
    with contextlib.redirect_stdout(io.StringIO()):
        path, exact = build(kind)
        paths = [path, *(surgeries(path, *names) for names in ((first,), (first, share), (first, tie)))]
    figures = [measure(path, exact) for path in paths]
    words = ("built", "int8", share, tie)
    text = ", ".join(f"{word} {far:.2f} ({same})" for word, (far, same) in zip(words, figures, strict=True))
    print(f"{kind}: {text}")
    seen[kind] = [far < 0.4 for far, _ in figures]
right = [True, True, True, True]
wrong = [True, True, False, True]
sys.exit(seen != {"tied": right, "untied": wrong, "tied, bias": wrong})
PY
