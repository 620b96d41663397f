"""peft: the adapter of each tuner beside its base, and the merged model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from fixtures import zoo
from tests.writers.program import Case, Facts, facts, last_logits, serve

LAYERS = ["q_proj", "v_proj"]
KIND = "LlamaForCausalLM"
BASE = "base"
TUNERS: dict[str, Callable[[], Any]] = {
    "LoRA": lambda: peft.LoraConfig(target_modules=LAYERS, task_type="CAUSAL_LM"),
    "LoRA all-linear": lambda: peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
    "rsLoRA": lambda: peft.LoraConfig(target_modules=LAYERS, use_rslora=True, task_type="CAUSAL_LM"),
    "DoRA": lambda: peft.LoraConfig(target_modules=LAYERS, use_dora=True, task_type="CAUSAL_LM"),
    "PiSSA": lambda: peft.LoraConfig(target_modules=LAYERS, init_lora_weights="pissa", task_type="CAUSAL_LM"),
    "OLoRA": lambda: peft.LoraConfig(target_modules=LAYERS, init_lora_weights="olora", task_type="CAUSAL_LM"),
    "AdaLoRA": lambda: peft.AdaLoraConfig(target_modules=LAYERS, total_step=10, task_type="CAUSAL_LM"),
    "LoHa": lambda: peft.LoHaConfig(target_modules=LAYERS, task_type="CAUSAL_LM"),
    "LoKr": lambda: peft.LoKrConfig(target_modules=LAYERS, task_type="CAUSAL_LM"),
    "IA3": lambda: peft.IA3Config(
        target_modules=[*LAYERS, "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
    ),
    "OFT": lambda: peft.OFTConfig(target_modules=LAYERS, oft_block_size=8, task_type="CAUSAL_LM"),
    "BOFT": lambda: peft.BOFTConfig(target_modules=LAYERS, boft_block_size=4, task_type="CAUSAL_LM"),
    "VeRA": lambda: peft.VeraConfig(target_modules=["q_proj", "o_proj"], r=4, task_type="CAUSAL_LM"),
    "FourierFT": lambda: peft.FourierFTConfig(target_modules=LAYERS, n_frequency=8, task_type="CAUSAL_LM"),
    "HRA": lambda: peft.HRAConfig(target_modules=LAYERS, task_type="CAUSAL_LM"),
    "MiSS": lambda: peft.MissConfig(target_modules=["q_proj", "o_proj"], r=4, task_type="CAUSAL_LM"),
    "LN tuning": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"], task_type="CAUSAL_LM"),
    "VB-LoRA": lambda: peft.VBLoRAConfig(
        target_modules=["q_proj", "o_proj"], vector_length=8, num_vectors=16, task_type="CAUSAL_LM"
    ),
    "prompt tuning": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "trainable tokens": lambda: peft.TrainableTokensConfig(
        token_indices=[1, 5], target_modules=["embed_tokens"], task_type="CAUSAL_LM"
    ),
    "LoRA and tokens": lambda: peft.LoraConfig(
        target_modules=LAYERS, trainable_token_indices=[1, 5], task_type="CAUSAL_LM"
    ),
    "LoRA and embedding": lambda: peft.LoraConfig(
        target_modules=LAYERS, modules_to_save=["embed_tokens", "lm_head"], task_type="CAUSAL_LM"
    ),
}
NO_MERGE = ("prompt tuning", "p-tuning")


def tuned(title: str, tied: bool, base: Path) -> Any:
    """Return a base with an adapter whose weights are random; the base is saved in ``base``."""
    model = zoo.build(KIND, tie=tied)
    model.save_pretrained(base)
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), TUNERS[title]())
    torch.manual_seed(1)
    for name, value in sorted(model.named_parameters()):
        if value.requires_grad and value.is_floating_point() and "modules_to_save" not in name:
            value.data.add_(torch.randn(value.shape) * 0.01)
    return model


def write_adapter(title: str, tied: bool, folder: Path) -> Facts:
    model = tuned(title, tied, folder / BASE)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return {}


def write_merged(title: str, tied: bool, folder: Path) -> Facts:
    model = tuned(title, tied, folder.parent / "peft-base").merge_and_unload()
    model.save_pretrained(folder)
    return facts(model, folder)


def read_adapter(folder: Path) -> Any:
    base = transformers.AutoModelForCausalLM.from_pretrained(folder.parent / BASE)
    return last_logits(peft.PeftModel.from_pretrained(base, folder))


def read_merged(folder: Path) -> Any:
    return last_logits(transformers.AutoModelForCausalLM.from_pretrained(folder))


def cases() -> Iterator[Case]:
    for title in TUNERS:
        for tied in (True, False):
            word = f"{title} {'tied' if tied else 'untied'}"
            yield Case(f"{word} adapter", partial(write_adapter, title, tied), read_adapter, file="adapter")
            if title not in NO_MERGE:
                yield Case(f"{word} merged", partial(write_merged, title, tied), read_merged)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
