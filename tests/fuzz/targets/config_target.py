"""Configs: flags of every type at every level, sizes that lie, and keys that a terminal obeys."""

from __future__ import annotations

import random

from tests.fuzz.case import Case
from tests.fuzz.models import CONFIG, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES
from tests.fuzz.mutate.json_tree import Pairs, damaged

KEYS = ("tie_word_embeddings", "tie_embeddings", "architectures", "model_type", "vocab_size", "hidden_size",
        "text_config",
        "quantization_config", "auto_map", "transformers_weights", "decoder", "encoder", "torch_dtype", "d_model",
        "final_logit_softcapping", "rope_scaling", "num_nextn_predict_layers", "pad_token_id",
        "is_encoder_decoder")  # fmt: skip
CLASSES = ("LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "BertForMaskedLM", "Gemma2ForCausalLM",
           "Qwen2VLForConditionalGeneration", "BartForConditionalGeneration", "WhisperForConditionalGeneration",
           "LlamaForSequenceClassification", "DeepseekV3ForCausalLM", "CLIPModel", "Nothing")  # fmt: skip
TYPES = ("llama", "gpt2", "t5", "bert", "gemma2", "qwen2_vl", "bart", "whisper", "deepseek_v3", "clip", "nothing")
_EXTRA: tuple[object, ...] = (
    *CLASSES, *TYPES, [CLASSES[0]], [CLASSES[0], CLASSES[1]], [None], [Pairs()], Pairs([["tie_word_embeddings", True]]),
    Pairs([["tie_word_embeddings", False], ["vocab_size", 8]]), Pairs([["model_type", "llama"], ["hidden_size", 4]]),
    Pairs([["quant_method", "gptq"], ["bits", 4]]), True, False, 0, 8, 4, -1, 1 << 40, "bfloat16", "float32",
)  # fmt: skip


def make(rng: random.Random) -> Case:
    """Return a good weight file beside a damaged config."""
    values: dict[str, object] = dict(CONFIG)
    values["architectures"], values["model_type"] = [rng.choice(CLASSES)], rng.choice(TYPES)
    if rng.random() < 0.5:
        place = rng.randrange(len(CLASSES) - 1)
        values["architectures"] = [CLASSES[place]]
        values["model_type"] = (*TYPES[:9], "clip", "nothing")[min(place, 10)]
    for key in rng.sample(KEYS, rng.randint(0, 3)):
        values[key] = rng.choice(
            (True, False, None, 0, 8, "true", [], {}, {"tie_word_embeddings": True, "vocab_size": 8}, [{}])
        )
    files = {"model.safetensors": safetensors(tensors(tied=rng.random() < 0.5, copy=rng.random() < 0.5))}
    files["config.json"] = damaged(rng, values, _EXTRA)
    if rng.random() < 0.2:
        files["tokenizer_config.json"] = damaged(
            rng, {"pad_token": "<pad>", "added_tokens_decoder": {"8": {"content": "x"}}}
        )
    if rng.random() < 0.1:
        files["generation_config.json"] = damaged(rng, {"eos_token_id": 1, "x": NAMES[8]})
    if rng.random() < 0.1:
        files["modeling_x.py"] = rng.choice(
            (b"_tied_weights_keys = ['lm_head.weight']\n", b"\xff\xfe", b"class A:\n" * 99)
        )
    return Case("config", files, ".", "json", ("config.json",))
