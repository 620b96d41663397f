#!/usr/bin/env bash
# peft 0.21.2: ensure_weight_tying keeps LoRA of an embedding and a head equal by memory alone, and a merge adds it twice.
#
# With `ensure_weight_tying=True`, PEFT puts LoRA on the embedding and on the head of a tied model. By its help text "the
# adapters added to the tied layers are also tied". They are four parameters that share memory in pairs. Three things
# follow. First, `merge_and_unload` adds the change of each module to the one matrix, so twice. The merged model computes
# something else than the trained one. Second, a cast, or a move to a device, gives each parameter memory of its own, and
# they drift apart in training. For a base in bfloat16 PEFT casts the adapters to float32 itself (autocast_adapter_dtype).
# So there the option has no effect from the start, and no warning comes. Third, the warning at the merge, "This can lead
# to complications", points to an untied base. The stored target_modules have the embedding alone, so on that base the
# part of the head is dropped. modules_to_save and trainable_token_indices merge rightly with the option. Issue 2864 of
# peft, open when this was written, asks to handle ties consistently. No public issue of these three was found, in pull
# request 2879 that added the option neither. Seen with peft 0.21.2, transformers 5.24.0 and torch 2.13.0:
#   LoRA, float32 base: adapters equal after training: True; outputs kept by a merge: False; change added 2.0 times
#   LoRA, bfloat16 base: adapters equal after training: False
#   LoRA, loaded onto the untied base: outputs as trained: False; with lm_head in target_modules too: True
#   modules_to_save: outputs kept by a merge: True
#   token rows: outputs kept by a merge: True
# So load the adapter onto the untied base with both modules in target_modules, and merge it there.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
small, ids = {**sizes, "bos_token_id": 0, "eos_token_id": 0}, torch.tensor([[1, 2, 3, 4]])


def base(dtype=torch.float32, tied=True):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**small, tie_word_embeddings=tied))
    if not tied:
        model.load_state_dict(base().state_dict())
    return model.to(dtype)


@torch.no_grad()
def outputs(model):
    return model.eval()(input_ids=ids).logits.float()


def train(option, dtype=torch.float32):
    model = get_peft_model(base(dtype), LoraConfig(r=4, ensure_weight_tying=True, **option))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
    torch.manual_seed(0)
    for _ in range(20):
        batch = torch.randint(100, (4, 12))
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def merge_keeps_outputs(model):
    trained = outputs(model)
    return outputs(model.merge_and_unload()).allclose(trained, atol=1e-3)


def changes(model):
    """The low-rank changes of the embedding and of the head."""
    wrapped = model.base_model.model
    return [module.get_delta_weight("default") for module in (wrapped.model.embed_tokens, wrapped.lm_head)]


single, half = (train({"target_modules": ["embed_tokens"]}, dtype) for dtype in (torch.float32, torch.bfloat16))
equal = [torch.allclose(*changes(model), atol=1e-4) for model in (single, half)]
single.save_pretrained(sys.argv[1])
trained, change = outputs(single), changes(single)[0]
kept = merge_keeps_outputs(single)
added = single.base_model.model.lm_head.weight - base().lm_head.weight
times = round((added.norm() / change.norm()).item(), 2)
print(f"LoRA, float32 base: adapters equal after training: {equal[0]}; outputs kept by a merge: {kept}; change added {times} times")
print(f"LoRA, bfloat16 base: adapters equal after training: {equal[1]}")
loaded = []
for targets in (None, ["embed_tokens", "lm_head"]):
    config = LoraConfig.from_pretrained(sys.argv[1])
    config.target_modules = targets or config.target_modules
    loaded.append(outputs(PeftModel.from_pretrained(base(tied=False), sys.argv[1], config=config)).allclose(trained, atol=1e-3))
told = "LoRA, loaded onto the untied base: outputs as trained: {}; with lm_head in target_modules too: {}"
print(told.format(*loaded))
options = {
    "modules_to_save": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "token rows": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
}
right = [merge_keeps_outputs(train(option)) for option in options.values()]
for name, value in zip(options, right):
    print(f"{name}: outputs kept by a merge: {value}")
sys.exit((equal, kept, times, loaded, right) != ([True, False], False, 2.0, [False, True], [True, True]))
PY
