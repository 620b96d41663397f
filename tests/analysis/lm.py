"""Small real language models of transformers, with a tokenizer and a text."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.lazy import torch, transformers

VOCABULARY, WIDTH, PADDING = 160, 32, 12
MASKED = ("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet",
          "roberta", "xlm-roberta")  # fmt: skip
TRANSLATING = ("bart", "blenderbot", "m2m_100", "marian", "mbart", "pegasus", "plbart", "t5")
ENCODER_DECODER = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                   "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 64, "d_kv": 16, "d_ff": 48, "num_layers": 1,
                   "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}  # fmt: skip
"""With sizes of their own; d_model is a power of four, by whose root T5 may divide exactly."""


MORE: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0},
    "granitemoe": {"logits_scaling": 3.0},
    "granitemoeshared": {"logits_scaling": 3.0},
    "gemma2": {"final_logit_softcapping": 5.0},
    "gpt_neo": {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 4},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "jamba": {"use_mamba_kernels": False},
    "jetmoe": {"kv_channels": 8},
    "mixtral": {"num_local_experts": 2},
    "qwen2_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "falcon": {"multi_query": False, "alibi": False, "num_kv_heads": 4, "head_dim": ...},
}  # fmt: skip
"""Settings that a class needs, or without which a factor of its logits would be 1."""


def config_of(model_type: str, *, tied: bool, **more: Any) -> Any:
    """A tiny config: keys that a class does not know are ignored by it, those given as ``...`` are left out."""
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_embd": WIDTH, "intermediate_size": 48,
        "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2,
        "head_dim": 8, "max_position_embeddings": 256, "n_positions": 256, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": tied,
    }  # fmt: skip
    if model_type in MASKED:
        sizes |= {"dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "embedding_size": WIDTH}
        sizes |= {"type_vocab_size": 2, "cls_token_id": 1, "sep_token_id": 2}
    if model_type in TRANSLATING:
        sizes = {key: sizes[key] for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
        sizes |= {"max_position_embeddings": 256, "tie_word_embeddings": tied, **ENCODER_DECODER}
    values = {key: value for key, value in (sizes | more).items() if value is not ...}
    return transformers.AutoConfig.for_model(model_type, **values)


def inputs(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """What the model's forward pass takes for ``ids``; an encoder-decoder reads and predicts the same."""
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "use_cache" in signature(model.forward).parameters:
        given["use_cache"] = False
    return given | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def build(folder: Path, model_type: str = "llama", *, tied: bool, seed: int = 0, **more: Any) -> Any:
    """A random model, saved with a tokenizer of all but the last `PADDING` ids; norms are not left at 1."""
    torch.manual_seed(seed)
    auto = transformers.AutoModelForMaskedLM if model_type in MASKED else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForSeq2SeqLM if model_type in TRANSLATING else auto
    model = auto.from_config(config_of(model_type, tied=tied, **more)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed" in name or "lm_head" in name or "wte" in name:
                parameter.mul_(10)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.3)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    vocabulary = {f"w{number}": number for number in range(VOCABULARY - PADDING)}
    words = {"cls_token": "w1", "sep_token": "w2", "eos_token": "w2", "mask_token": "w3", "pad_token": "w0"}
    special = {kind: AddedToken(word, single_word=True) for kind, word in words.items()}  # w1 is no part of w10
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", **special).save_pretrained(folder)


def write_text(path: Path, tokens: int = 2600, seed: int = 0) -> Path:
    """Words by a Zipf law, so that frequencies differ."""
    weights = 1 / (1 + np.arange(VOCABULARY - PADDING))
    drawn = np.random.default_rng(seed).choice(VOCABULARY - PADDING, tokens, p=weights / weights.sum())
    path.write_text(" ".join(f"w{number}" for number in drawn))
    return path


def configure(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def mean_kl(before: torch.Tensor, after: torch.Tensor) -> float:
    """KL in nats a token from log-probabilities [tokens, V] to others."""
    return float((before.exp() * (before - after)).sum(-1).mean())


def loss_change(before: torch.Tensor, after: torch.Tensor, targets: torch.Tensor) -> float:
    """How much more nats a token the ``targets`` cost after than before."""
    return float((before - after).gather(-1, targets[:, None]).mean())
