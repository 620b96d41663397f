"""PEFT adapters: the adapter's config and its weights, with and without a base model."""

from __future__ import annotations

import random

from tests.fuzz.case import Case
from tests.fuzz.models import config, numbers, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES
from tests.fuzz.mutate.json_tree import Pairs, Raw, damaged
from tests.fuzz.targets.safetensors_target import damaged_file

_WRAPPED = "base_model.model."
_NAMES = (
    f"{_WRAPPED}lm_head.lora_A.weight", f"{_WRAPPED}lm_head.lora_B.weight",
    f"{_WRAPPED}model.embed_tokens.lora_embedding_A",
    f"{_WRAPPED}model.layers.0.self_attn.q_proj.lora_A.weight", f"{_WRAPPED}lm_head.weight",
    f"{_WRAPPED}lm_head.modules_to_save.weight", f"{_WRAPPED}model.embed_tokens.token_adapter.trainable_tokens_delta",
)  # fmt: skip
CONFIG: dict[str, object] = {
    "peft_type": "LORA", "base_model_name_or_path": "base", "target_modules": ["q_proj", "lm_head"],
    "modules_to_save": None,
    "auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"}, "r": 2,
    "lora_alpha": 4, "trainable_token_indices": None, "ensure_weight_tying": False,
}  # fmt: skip
_EXTRA: tuple[object, ...] = (
    "LORA", "IA3", "PROMPT_TUNING", "all-linear", "base", "../base", "/", "/etc", "", ["embed_tokens"],
    ["lm_head", 1], [None],
    "embed_tokens|lm_head", "(a+)+$", Raw('"(a|a)*b"'), Pairs([["embed_tokens", [1, 2]]]), [0, 1], {}, True,
    None, "org/absent",
)  # fmt: skip


def make(rng: random.Random) -> Case:
    """Return an adapter with a damaged config or damaged weights."""
    stored = {
        name: ("F32", (2, 4), numbers(8, place)) for place, name in enumerate(rng.sample(_NAMES, rng.randint(1, 4)))
    }
    if rng.random() < 0.3:
        stored[rng.choice(NAMES).replace("__metadata__", "m")] = ("F32", (8, 4), numbers(32, 9))
    weights = damaged_file(rng, stored) if rng.random() < 0.4 else safetensors(stored)
    files = {"adapter_model.safetensors": weights}
    files["adapter_config.json"] = damaged(rng, dict(CONFIG), tuple(tuple_free(one) for one in _EXTRA))
    if rng.random() < 0.4:
        files["config.json"] = config()
    if rng.random() < 0.2:
        files["model.safetensors"] = safetensors(tensors())
    if rng.random() < 0.3:
        files |= {"base/config.json": config(), "base/model.safetensors": safetensors(tensors(tied=True))}
    model = rng.choice((".", ".", "adapter_model.safetensors"))
    read = ("adapter_config.json",) if model == "." and "model.safetensors" not in files else ()
    return Case("peft", files, model, "json", read)


def tuple_free(value: object) -> object:
    """Return a value that a tree may hold: an empty dict as `Pairs`."""
    return Pairs() if value == {} and isinstance(value, dict) else value
