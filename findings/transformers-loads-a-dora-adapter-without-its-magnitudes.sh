#!/usr/bin/env bash
# transformers 5.23.0: a DoRA adapter that `from_pretrained` loads gets new magnitudes in place of the trained ones.
#
# DoRA is LoRA with a trained magnitude for each output channel. `PeftModel.from_pretrained` reads all parts of a saved
# adapter. `AutoModelForCausalLM.from_pretrained` of the adapter's folder does not, and neither does `load_adapter`. The
# file calls the magnitudes lora_magnitude_vector. In the model that PEFT builds, they are the weight of a module of
# that name. transformers 5 reads adapters with its own loader, which does not add that part of the name. So each
# magnitude is the norm of its channel in the base model, as at the start of training. The result is neither the trained
# model nor the base model. DoRA of layers, of a head and of an embedding lose them alike. `save_pretrained` then stores
# the new magnitudes. LoRA without DoRA is right, and so are LoHa, LoKr, IA3 and BOFT. No error is raised. The load
# report lists the names as unexpected and as missing, and advises to train. transformers 4.57.6 loads the same adapters
# rightly, and 5.24.0 does what 5.23.0 does. No public issue was found. Seen with transformers 5.23.0, peft 0.21.2 and
# torch 2.13.0. The figures are distances from the logits of the saved model, by their norm. They change a little
# between machines:
#   LoRA of layers: base model 1.2, PEFT 0.0, transformers 0.0, stored again and read by PEFT 0.0
#   DoRA of layers: base model 1.2, PEFT 0.0, transformers 0.5, stored again and read by PEFT 0.5
#   DoRA of the embedding: base model 1.3, PEFT 0.0, transformers 0.5, stored again and read by PEFT 0.5
#   DoRA of the head: base model 1.0, PEFT 0.0, transformers 0.3, stored again and read by PEFT 0.3
# So load DoRA with PeftModel, and merge it before it is released.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2 2>/dev/null
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

base = f"{sys.argv[1]}/base"
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=64, initializer_range=0.2, tie_word_embeddings=False, **sizes)
LlamaForCausalLM(config).save_pretrained(base)
ids = torch.randint(0, 64, (2, 8))


def folder():
    return tempfile.mkdtemp(dir=sys.argv[1])


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=ids).logits


def load():
    return AutoModelForCausalLM.from_pretrained(base)


def measure(targets, dora):
    torch.manual_seed(1)
    model = get_peft_model(load(), LoraConfig(target_modules=targets, use_dora=dora))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(path := folder())
    right, seen = logits(model), AutoModelForCausalLM.from_pretrained(path)
    seen.save_pretrained(again := folder())
    models = load(), PeftModel.from_pretrained(load(), path), seen, PeftModel.from_pretrained(load(), again)
    return [((logits(model) - right).norm() / right.norm()).item() for model in models]


cases = {
    "LoRA of layers": measure(["q_proj", "o_proj"], False),
    "DoRA of layers": measure(["q_proj", "o_proj"], True),
    "DoRA of the embedding": measure(["embed_tokens"], True),
    "DoRA of the head": measure(["lm_head"], True),
}
line = "{}: base model {:.1f}, PEFT {:.1f}, transformers {:.1f}, stored again and read by PEFT {:.1f}"
for title, figures in cases.items():
    print(line.format(title, *figures))
plain, *dora = cases.values()
lost = all(peft < 0.01 and seen > 0.1 and again > 0.1 for _, peft, seen, again in dora)
sys.exit(not (lost and max(plain[1:]) < 0.01))
PY
