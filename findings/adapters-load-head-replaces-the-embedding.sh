#!/usr/bin/env bash
# adapters 1.3.0: loading a prediction head replaces the input embedding of the model it is loaded into.
#
# `save_head` of a causal language model stores the head's last matrix. This is the input embedding of its model, because
# the two are tied. `load_head` into another model of the same sizes ties the head to that model's embedding, and copies
# the stored matrix into it. So the model has the embedding of one model under the layers of another, and its hidden
# states change, even where the head is not used. Nothing is raised. No public issue was found. Seen with adapters 1.3.0,
# transformers 4.57.6 and torch 2.13.0:
#   stored with the head: heads.h.3.weight of [100, 32]
#   after load_head: embedding unchanged False, hidden states unchanged False
# So load a head only into the base model that it was trained on.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 adapters==1.3.0 transformers==4.57.6 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work/head" <<'PY' 2>/dev/null
import sys

import torch
from adapters import GPT2AdapterModel
from transformers import GPT2Config

config = GPT2Config(vocab_size=100, n_embd=32, n_head=2, n_layer=1, bos_token_id=0, eos_token_id=0)
torch.manual_seed(0)
source, target = (GPT2AdapterModel(config).eval() for _ in range(2))
source.add_causal_lm_head("h")
source.save_head(sys.argv[1], "h")
for name, tensor in torch.load(f"{sys.argv[1]}/pytorch_model_head.bin").items():
    if len(tensor) == 100 and tensor.dim() == 2:
        print(f"stored with the head: {name} of {list(tensor.shape)}")
ids = torch.tensor([[1, 2, 3]])
embedding, hidden = target.get_input_embeddings().weight.clone(), target.transformer(ids).last_hidden_state
target.load_head(sys.argv[1])
same = target.get_input_embeddings().weight.equal(embedding), target.transformer(ids).last_hidden_state.allclose(hidden)
print(f"after load_head: embedding unchanged {same[0]}, hidden states unchanged {same[1]}")
sys.exit(same != (False, False))
PY
