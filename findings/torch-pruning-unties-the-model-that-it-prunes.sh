#!/usr/bin/env bash
# torch-pruning 1.6.1: a tied Llama comes out untied, and what a loader makes of it after fine-tuning differs.
#
# Torch-Pruning removes channels from all layers that depend on each other. Here it removes half of the hidden channels
# of a tied Llama, which the embedding and the head have too. It writes a new parameter for each module that it cuts. So
# the embedding and the head become two parameters with equal numbers, as large together as before. Fine-tuning then
# trains two matrices, like those of an untied model. Nothing is raised or warned. `save_pretrained` stores both
# matrices, and config.json still says tied. transformers 5.24.0 compares them, and loads both. transformers 4.57.6
# follows the flag, and loads the model without its trained head. `tie_weights` right after the pruning makes one matrix
# of the two, and both releases load the same. The README and the code of Torch-Pruning mention no tied weights, and no
# public issue was found. Seen with torch-pruning 1.6.1, transformers 5.24.0 and 4.57.6, and torch 2.13.0. The losses
# change a little between machines:
#   tied: parameters 88384 to 34976, one matrix True to False
#   untied: parameters 94528 to 34976, one matrix False to False
#   tied, tie_weights after it: parameters 88384 to 31904, one matrix True to True
#   tied, after fine-tuning: logits of the untied one True
#   loss in transformers 5.24.0: 0.0; tied again 0.0
#   loss in transformers 4.57.6: 4.3; tied again 0.0
# So tie the model again after each pruning.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/pip"
"$pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 torch-pruning==1.6.1 2>/dev/null
"$pip" install -q --disable-pip-version-check --target "$work/four" transformers==4.57.6 2>/dev/null
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
cat > "$work/prune.py" <<'PY'
import sys

import torch
import torch_pruning
from transformers import LlamaConfig, LlamaForCausalLM

work = sys.argv[1]
ids = torch.randint(0, 96, (4, 12), generator=torch.Generator().manual_seed(1))
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def one(model):
    return model.lm_head.weight is model.model.embed_tokens.weight


def prune(title, tied, again=False):
    """A model with half of its hidden channels; its two matrices start equal even if it is not tied."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, tie_word_embeddings=True, use_cache=False, **sizes)).eval()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.clone())
    before, was = size(model), one(model)
    layers = [layer.self_attn for layer in model.model.layers]
    options = {
        "importance": torch_pruning.importance.MagnitudeImportance(p=2),
        "pruning_ratio": 0.5,
        "head_pruning_ratio": 0,
        "num_heads": {part: 4 for layer in layers for part in (layer.q_proj, layer.k_proj, layer.v_proj)},
        "prune_head_dims": False,
        "ignored_layers": [model.lm_head],
        "output_transform": lambda output: output.logits,
    }
    torch_pruning.pruner.BasePruner(model, ids, **options).step()
    model.config.hidden_size = model.model.embed_tokens.embedding_dim
    model.config.intermediate_size = model.model.layers[0].mlp.up_proj.out_features
    if again:
        model.tie_weights()
    print(f"{title}: parameters {before} to {size(model)}, one matrix {was} to {one(model)}")
    return model, was, one(model)


def tune(model, path):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(path)
    return model(input_ids=ids).logits


(tied, *first), (untied, *second) = prune("tied", True), prune("untied", False)
again, *third = prune("tied, tie_weights after it", True, again=True)
logits, twin, _ = tune(tied, f"{work}/pruned"), tune(untied, f"{work}/untied"), tune(again, f"{work}/again")
alike = ((logits - twin).norm() / twin.norm()).item() < 0.01
print(f"tied, after fine-tuning: logits of the untied one {alike}")
sys.exit((first, second, third, alike) != ([True, False], [False, False], [True, True], True))
PY
cat > "$work/load.py" <<'PY'
import sys

import torch
import transformers

ids = torch.randint(0, 96, (4, 12), generator=torch.Generator().manual_seed(1))
losses = []
for name in ("pruned", "again"):
    model = transformers.LlamaForCausalLM.from_pretrained(f"{sys.argv[1]}/{name}")
    losses.append(model(input_ids=ids, labels=ids).loss.item())
print("loss in transformers {}: {:.1f}; tied again {:.1f}".format(transformers.__version__, *losses))
changed = losses[0] > 1 if transformers.__version__.startswith("4") else losses[0] < 0.5
sys.exit(not (changed and losses[1] < 0.5))
PY
"$work/venv/bin/python" "$work/prune.py" "$work" 2>/dev/null
"$work/venv/bin/python" "$work/load.py" "$work" 2>/dev/null
PYTHONPATH="$work/four" "$work/venv/bin/python" "$work/load.py" "$work" 2>/dev/null
