"""A byte-level BPE tokenizer of few tokens: llama.cpp's converter and the ONNX builder need one beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEXT = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;!?'\"()[]{}<>/|+-*=_~@#$%&"
_SPECIAL = (
    "<s>", "</s>", "<unk>", "<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>", "<|startoftext|>", "<bos>",
    "<eos>",
)  # fmt: skip
"""Tokens that the converters of some classes look up by name."""


def write_tokenizer(folder: Path, rows: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with at most ``rows`` tokens."""
    tokens = [*_SPECIAL, "\u0120", "ab", *_TEXT][: rows - 1]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    special = [
        {"id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number in range(len(_SPECIAL))
    ]  # fmt: skip
    made: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": ["a b"]},
    }  # fmt: skip
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "model_max_length": 64, "add_bos_token": True,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
