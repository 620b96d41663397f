#!/usr/bin/env bash
# llmcompressor 0.14.0.1: SmoothQuant changes what a Gemma 2, a Gemma 3 and a GLM-4 MoE compute, though it lists them.
#
# SmoothQuant divides the weight of a norm by a scale for each channel, and multiplies the next matrices by it. The
# float model should compute as before. `SmoothQuantModifier` has a table of classes that says which norm stands before
# which matrices. Gemma 2 and Gemma 3 have the entry of Llama, which pairs post_attention_layernorm with the MLP. In a
# Gemma 2 that norm comes before the sum with the residual, and pre_feedforward_layernorm stands before the MLP. So the
# output of the attention is divided, the matrices of the MLP are multiplied, and nothing cancels. GLM-4 MoE has the
# same entry. There the norm is right, but the router of the experts reads it too and is left as it was. So tokens go
# to other experts. The changed model is the one that is quantized and saved. Nothing is raised or warned. With the
# right norm in `mappings`, both Gemmas are exact, and so is GLM-4 MoE with its router scaled as well. Pull request 2174
# of llm-compressor added the two Gemmas, and says that they share the architecture of their predecessors. Pull request
# 1455 is about the router of mixtures of experts. No public issue about these entries was found. Seen with
# llmcompressor 0.14.0.1, compressed-tensors 0.19.0, transformers 5.17.0 and torch 2.13.0; the figures are distances
# from the logits of the model before, by their norm, and nothing is quantized:
#   Llama: logits 0.00
#   Qwen2: logits 0.00
#   Gemma 2: logits 0.68
#   Gemma 3: logits 0.71
#   GLM-4 MoE: logits 0.18
#   Gemma 2, the right norm: logits 0.00
#   Gemma 3, the right norm: logits 0.00
#   GLM-4 MoE, the router scaled: logits 0.00
# So compare the logits before and after SmoothQuant, without a quantizer, or name the norms in `mappings`.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 llmcompressor==0.14.0.1 \
  compressed-tensors==0.19.0 transformers==5.17.0 2>/dev/null
cd "$work"
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error LLM_COMPRESSOR_LOG_DISABLED=true
"$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import sys

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.transform import SmoothQuantModifier
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

draws = torch.Generator().manual_seed(0)
ids = torch.randint(3, 120, (2, 9), generator=draws)
texts = torch.randint(3, 120, (8, 16), generator=draws).tolist()
data = Dataset.from_dict({"input_ids": texts, "attention_mask": [[1] * 16] * 8})
words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(128)}, unk_token="t0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", pad_token="t0")
sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": 0}
experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 0}
attention = [["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"]
before_mlp = [["re:.*gate_proj", "re:.*up_proj"], "re:.*pre_feedforward_layernorm"]


@torch.no_grad()
def logits(model):
    return model.eval()(ids).logits


@torch.no_grad()
def save(kind):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **heads, **(experts if kind == "glm4_moe" else {}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.1)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")


def smooth(kind, mappings):
    save(kind)
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    exact = logits(model)
    recipe = SmoothQuantModifier(mappings=mappings)
    samples = {"num_calibration_samples": 8, "max_seq_length": 16}
    oneshot(model=model, tokenizer=tokenizer, recipe=recipe, dataset=data, **samples)
    return model, exact


def distance(model, exact):
    return ((logits(model) - exact).norm() / exact.norm()).item()


@torch.no_grad()
def scale_routers(model):
    for before, after in zip(AutoModelForCausalLM.from_pretrained("model").model.layers, model.model.layers):
        scale = before.post_attention_layernorm.weight / after.post_attention_layernorm.weight
        after.mlp.gate.weight.mul_(scale)


seen = []
for title, kind, mappings in (
    ("Llama", "llama", None),
    ("Qwen2", "qwen2", None),
    ("Gemma 2", "gemma2", None),
    ("Gemma 3", "gemma3_text", None),
    ("GLM-4 MoE", "glm4_moe", None),
    ("Gemma 2, the right norm", "gemma2", [attention, before_mlp]),
    ("Gemma 3, the right norm", "gemma3_text", [attention, before_mlp]),
    ("GLM-4 MoE, the router scaled", "glm4_moe", None),
):
    model, exact = smooth(kind, mappings)
    if "router" in title:
        scale_routers(model)
    seen.append(distance(model, exact))
    print(f"{title}: logits {seen[-1]:.2f}")
sys.exit(not (max(seen[:2] + seen[5:]) < 0.005 and min(seen[2:5]) > 0.02))
PY
