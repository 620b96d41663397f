#!/usr/bin/env bash
# transformers 5.24.0: a sharded save into a used directory does not count, and the old weights load without a word.
#
# `save_pretrained` writes a model that fits one shard as model.safetensors. A later save of the same directory can need
# more shards: the model has grown, or max_shard_size is smaller. `save_pretrained` then writes the shards and
# model.safetensors.index.json, and deletes only old files whose names are those of shards. So model.safetensors stays.
# `from_pretrained` looks for model.safetensors first and never reads the index. It raises and warns of nothing, and it
# returns the weights of the first save. `save_torch_model` of huggingface_hub 2.4.0 deletes the old file in the same
# case. No public issue of transformers was found; issue 14769 of diffusers describes the same between .bin and
# .safetensors. Seen with transformers 5.24.0, huggingface_hub 2.4.0 and torch 2.13.0:
#   transformers saved 4 shards, model.safetensors is still there: True
#   missing or unexpected names: 0
#   the loaded embedding is that of save 1
#   huggingface_hub saved 4 shards, model.safetensors is still there: False
# So save every release into an empty directory.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 huggingface_hub==2.4.0 2>/dev/null
TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1 "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys
from pathlib import Path

import torch
from huggingface_hub import save_torch_model
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_head=2, n_layer=2, bos_token_id=0, eos_token_id=0))
savers = {"transformers": GPT2LMHeadModel.save_pretrained, "huggingface_hub": save_torch_model}
stale = []
for name, saver in savers.items():
    folder = Path(sys.argv[1]) / name
    folder.mkdir()
    for number, options in ((1, {}), (2, {"max_shard_size": "50KB"})):
        torch.nn.init.constant_(model.transformer.wte.weight, number)
        saver(model, folder, **options)
    shards = len(list(folder.glob("model-0*.safetensors")))
    stale.append((folder / "model.safetensors").exists())
    print(f"{name} saved {shards} shards, model.safetensors is still there: {stale[-1]}")
    if name == "transformers":
        loaded, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
        wrong = sum(len(report[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        save = loaded.transformer.wte.weight.unique().tolist()
        print("missing or unexpected names:", wrong)
        print("the loaded embedding is that of save", *map(int, save))
sys.exit((stale, wrong, save) != ([True, False], 0, [1.0]))
PY
