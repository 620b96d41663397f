"""Small real language models of transformers, with a tokenizer and a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY, WIDTH, PADDING = 160, 32, 12


def config_of(model_type: str, *, tied: bool, **more: Any) -> Any:
    """A tiny config: keys that a class does not know are ignored by it, those given as ``...`` are left out."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "n_embd": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "n_layer": 2,
        "num_attention_heads": 4,
        "n_head": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "n_positions": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": tied,
    }
    values = {key: value for key, value in (sizes | more).items() if value is not ...}
    return AutoConfig.for_model(model_type, **values)


def build(folder: Path, model_type: str = "llama", *, tied: bool, seed: int = 0, **more: Any) -> Any:
    """A random model, saved with a tokenizer of all but the last `PADDING` ids; norms are not left at 1."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_of(model_type, tied=tied, **more)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed" in name or "lm_head" in name or "wte" in name:
                parameter.mul_(10)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    vocabulary = {f"w{number}": number for number in range(VOCABULARY - PADDING)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)


def write_text(path: Path, tokens: int = 2600, seed: int = 0) -> Path:
    """Words by a Zipf law, so that frequencies differ."""
    weights = 1 / (1 + np.arange(VOCABULARY - PADDING))
    drawn = np.random.default_rng(seed).choice(VOCABULARY - PADDING, tokens, p=weights / weights.sum())
    path.write_text(" ".join(f"w{number}" for number in drawn))
    return path


def configure(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
