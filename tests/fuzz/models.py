"""Honest models of a few kilobytes, from which the targets start."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from tieconv.checkpoint.weight_file import BITS

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False, "vocab_size": 8,
    "hidden_size": 4, "num_hidden_layers": 1, "torch_dtype": "float32", "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "linear", "factor": 2.0},
}  # fmt: skip
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def numbers(count: int, seed: int) -> bytes:
    """Return ``count`` floats of single precision between 0.5 and 1."""
    rng = random.Random(seed)
    return b"".join(bytes([rng.randrange(256), rng.randrange(256), rng.randrange(128), 0x3F]) for _ in range(count))


def tensors(*, tied: bool = False, copy: bool = False) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return a Llama of one layer: name → dtype, shape, bytes."""
    embedding = numbers(32, 1)
    found = {EMBED: ("F32", (8, 4), embedding), "model.norm.weight": ("F32", (4,), numbers(4, 2))}
    found["model.layers.0.mlp.up_proj.weight"] = ("BF16", (4, 4), numbers(8, 3))
    if not tied:
        found[HEAD] = ("F32", (8, 4), embedding if copy else numbers(32, 4))
    return found


def entries(stored: Tensors) -> tuple[dict[str, object], bytes]:
    """Return the header of a safetensors file as a value, and its data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in stored.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def safetensors(stored: Tensors) -> bytes:
    """Return a whole safetensors file."""
    header, data = entries(stored)
    body = json.dumps(header).encode()
    return len(body).to_bytes(8, "little") + body + data


def config(**more: object) -> bytes:
    """Return the config, with ``more`` in it."""
    return json.dumps({**CONFIG, **more}).encode()


DTYPES = tuple(BITS)
