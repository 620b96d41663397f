#!/usr/bin/env bash
# peft 0.21.2: add_weighted_adapter combines the LoRA matrices, and puts rows of the base where rows were trained.
#
# `add_weighted_adapter` makes one adapter of several. With one adapter and the weight 1 it should make that adapter
# once more. Its LoRA matrices are the same. An adapter that was trained with `trainable_token_indices`, as for new
# chat tokens, has rows of the embedding beside them. The new adapter has a place for these rows, and there stand
# those of the base. The same holds for a head that was trained by `modules_to_save`, of one adapter alone: two
# adapters that both have one raise ValueError. `save_pretrained` stores the base's rows as if they had been trained.
# Nothing is raised, and the base may be tied or not. So the combined model reads and writes the new tokens with rows
# that nobody trained. target_parameters are refused. The docstring mentions none of this, and no public issue was
# found. Seen with peft 0.21.2, transformers 5.24.0 and torch 2.13.0:
#   LoRA alone: outputs as trained: True
#   token rows, tied: outputs as trained: False; stored rows: those of the base
#   token rows, untied: outputs as trained: False; stored rows: those of the base
#   head, untied: outputs as trained: False; stored rows: those of the base
#   two adapters with token rows: stored rows: those of the base
# So copy the rows of the adapters by hand, into the new adapter, before it is saved.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
small = {**sizes, "num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
ids, rows = torch.tensor([[1, 2, 3, 4]]), [1, 2]


def outputs(model, adapter):
    model.set_adapter(adapter)
    with torch.no_grad():
        return model(input_ids=ids).logits


def combine(tied, adapters, **option):
    """Whether the combined adapter gives the outputs of the first, and whose rows it stores."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**small, tie_word_embeddings=tied))
    base = {"embed_tokens": model.model.embed_tokens.weight[rows].clone(), "lm_head": model.lm_head.weight.clone()}
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, **option)
    model = get_peft_model(model, config, adapter_name=adapters[0]).eval()
    for name in adapters[1:]:
        model.add_adapter(name, config)
    trained = [weight for name, weight in model.named_parameters() if name.split(".")[-1] in adapters or "save" in name]
    for weight in trained:
        torch.nn.init.normal_(weight)
    before = outputs(model, adapters[0])
    model.add_weighted_adapter(adapters, [1.0] * len(adapters), "new", combination_type="linear")
    same = outputs(model, "new").allclose(before, atol=1e-3)
    model.save_pretrained(f"{sys.argv[1]}/adapter", selected_adapters=["new"])
    stored = load_file(f"{sys.argv[1]}/adapter/new/adapter_model.safetensors")
    owners = [value.equal(base[part]) for name, value in stored.items() for part in base if part in name]
    return same, "those of the base" if all(owners) else "others", len(owners)


cases = {
    "LoRA alone": (True, ["one"], {}),
    "token rows, tied": (True, ["one"], {"trainable_token_indices": rows}),
    "token rows, untied": (False, ["one"], {"trainable_token_indices": rows}),
    "head, untied": (False, ["one"], {"modules_to_save": ["lm_head"]}),
    "two adapters with token rows": (True, ["one", "two"], {"trainable_token_indices": rows}),
}
seen = {name: combine(tied, adapters, **option) for name, (tied, adapters, option) in cases.items()}
for name, (same, owner, count) in seen.items():
    texts = [f"outputs as trained: {same}"] * (len(cases[name][1]) == 1) + [f"stored rows: {owner}"] * bool(count)
    print(f"{name}: {'; '.join(texts)}")
lost = (False, "those of the base", 1)
sys.exit(list(seen.values()) != [(True, "those of the base", 0), lost, lost, lost, lost])
PY
