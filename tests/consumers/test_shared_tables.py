"""Encoder-decoders of which a file holds the shared table and a head of its own, and no table of either half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tieconv

SIZES = {"vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_ff": 16, "d_kv": 4,
         "num_heads": 4, "num_layers": 1, "num_decoder_layers": 1, "max_position_embeddings": 64, "pad_token_id": 0,
         "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MEASURED = {
    "t5": ("untied", "untied"), "mt5": ("untied", "untied"), "umt5": ("untied", "untied"),
    "longt5": ("random", "untied"), "switch_transformers": ("random", "random"), "bart": ("random", "random"),
    "mbart": ("random", "random"), "m2m_100": ("random", "random"), "pegasus": ("untied", "untied"),
    "pegasus_x": ("untied", "untied"), "marian": ("untied", "untied"), "blenderbot": ("untied", "untied"),
    "blenderbot-small": ("untied", "untied"), "led": ("untied", "untied"), "mvp": ("untied", "untied"),
}  # fmt: skip
"""What transformers 4.48.3 and 4.57.6 do with the file, the flag being false: the tables of both halves are the shared
one, or start with random numbers."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model_type", MEASURED)
def test_the_tables_of_both_halves(model_type: str, tmp_path: Path) -> None:
    """No claim is another than what was measured; what is not claimed is unknown, and in 4.57 nothing is."""
    config = transformers.AutoConfig.for_model(model_type, **SIZES, tie_word_embeddings=False)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    held = {name: value for name, value in held.items() if not name.endswith("embed_tokens.weight")}
    held["lm_head.weight"] = torch.randn(64, 16)
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    values.pop("scale_decoder_outputs", None)
    (tmp_path / "config.json").write_text(json.dumps(values))
    older, newer = tieconv.inspect(tmp_path, consumers="transformers<5").consumers
    assert str(older.outcome) in (MEASURED[model_type][0], "unknown")
    assert str(newer.outcome) == MEASURED[model_type][1]
