#!/usr/bin/env bash
# peft 0.21.2: ensure_weight_tying ties the first adapter of a model alone, and a second one works with the base's head.
#
# An adapter can train the embedding of a tied model. With ensure_weight_tying=True, PEFT gives the head the same
# trained matrix, or the same LoRA, and stores both. That holds for the first adapter of a model. For a second one, PEFT
# adds the part of the embedding alone. So `load_adapter` of a second adapter fills its embedding and leaves its head in
# the file. `set_adapter` then computes with a trained embedding under the head of the base model, though each adapter
# is right when it is loaded alone. Two adapters without the option are right together. The same happens to an adapter
# that `add_adapter` adds for training: it is trained with the base's head. What it saves does not come back. For whole
# matrices, the load raises KeyError. For LoRA, it ties the head again, which computes what was never trained. A warning
# comes for whole matrices, and says that no tied modules were found in the model. Two loaded adapters with LoRA of the
# pair get no warning, and the answer of `load_adapter` lists the unused names. Issue 2864 of peft collects what tying
# should do. No public issue about a second adapter was found. Seen with peft 0.21.2, transformers 5.24.0 and torch
# 2.13.0. The figures are distances of the logits from those of the trained model, by their norm; the last one is of an
# adapter that was trained as the second one and loaded alone:
#   whole pair: second alone 0.00; together: first 0.00, second 0.00; trained as second 0.00
#   whole pair, ensure_weight_tying: second alone 0.00; together: first 0.00, second 0.77; trained as second KeyError
#   LoRA of the pair, ensure_weight_tying: second alone 0.00; together: first 0.00, second 0.93; trained as second 1.70
# So load each of such adapters into a model of its own.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check torch==2.13.0 transformers==5.24.0 \
  peft==0.21.2 accelerate==1.15.0 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

texts = torch.arange(1, 25).reshape(2, 12)
layers = ["q_proj", "v_proj"]
cases = {
    "whole pair": {"target_modules": layers, "modules_to_save": ["embed_tokens", "lm_head"]},
    "whole pair, ensure_weight_tying": {
        "target_modules": layers,
        "modules_to_save": ["embed_tokens", "lm_head"],
        "ensure_weight_tying": True,
    },
    "LoRA of the pair, ensure_weight_tying": {
        "target_modules": ["embed_tokens", *layers],
        "ensure_weight_tying": True,
    },
}


def base():
    return AutoModelForCausalLM.from_pretrained("base")


def train(model, ids):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


@torch.no_grad()
def logits(model):
    return model.eval()(texts).logits


def distance(first, second):
    return round(((first - second).norm() / second.norm()).item(), 2)


def measure(options):
    """Compare each adapter beside another with the same adapter alone. Train a second one and load it again."""
    trained = {}
    for name, ids in {"first": texts, "second": texts.flip(1)}.items():
        model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", r=4, **options))
        train(model, ids)
        trained[name] = logits(model)
        model.save_pretrained(name)
    alone = distance(logits(PeftModel.from_pretrained(base(), "second")), trained["second"])
    model = PeftModel.from_pretrained(base(), "first", adapter_name="first")
    model.load_adapter("second", "second")
    together = []
    for name, wanted in trained.items():
        model.set_adapter(name)
        together.append(distance(logits(model), wanted))
    model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", r=4, **options), adapter_name="first")
    model.add_adapter("second", LoraConfig(task_type="CAUSAL_LM", r=4, **options))
    model.set_adapter("second")
    train(model, texts)
    model.save_pretrained("both", selected_adapters=["second"])
    try:
        again = f"{distance(logits(PeftModel.from_pretrained(base(), 'both/second')), logits(model)):.2f}"
    except KeyError as error:
        again = type(error).__name__
    return alone, *together, again


torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=64, **sizes, initializer_range=0.1, tie_word_embeddings=True)
AutoModelForCausalLM.from_config(config).save_pretrained("base")
seen = {}
for name, options in cases.items():
    seen[name] = alone, first, second, again = measure(options)
    print(
        f"{name}: second alone {alone:.2f}; together: first {first:.2f}, second {second:.2f}; "
        f"trained as second {again}"
    )
untied, whole, lora = seen.values()
right = all(alone == first == 0 for alone, first, *_ in seen.values()) and untied[2:] == (0, "0.00")
wrong = whole[2] > 0.1 and whole[3] == "KeyError" and lora[2] > 0.1 and float(lora[3]) > 0.1
sys.exit(not (right and wrong))
PY
