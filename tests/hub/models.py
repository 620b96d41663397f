"""Models that are large enough for a range to be a small part of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tieconv.formats.safetensors import encode_header

ROWS, WIDTH = 2048, 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "tie_word_embeddings": False,
    "vocab_size": ROWS,
    "hidden_size": WIDTH,
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def noise(size: int, seed: int) -> bytes:
    """BF16 numbers between 0.5 and 2."""
    bits = random.Random(seed).randbytes(size // 2)
    return b"".join(bytes((byte, 0x3F)) for byte in bits)


def write_shard(path: Path, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> None:
    header = encode_header([(name, "BF16", shape, len(data)) for name, (shape, data) in tensors.items()], None)
    path.write_bytes(header + b"".join(data for _, data in tensors.values()))


def sharded(path: Path, shards: int = 9, *, head: bytes | None = None, tied: bool = False) -> Path:
    """A model of so many shards: the embedding in the first, the head in the last, layers in between."""
    path.mkdir()
    size = ROWS * WIDTH * 2
    embedding = noise(size, 1)
    (path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        tensors = {f"model.layers.{number}.mlp.up_proj.weight": ((4 * WIDTH, ROWS // 4), noise(size, 10 + number))}
        if number == 1:
            tensors[EMBEDDING] = ((ROWS, WIDTH), embedding)
        if number == shards:
            tensors[HEAD] = ((ROWS, WIDTH), noise(size, 2) if head is None else head)
        write_shard(path / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": size * (shards + 2)}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def same_head() -> bytes:
    """The bytes of the embedding."""
    return noise(ROWS * WIDTH * 2, 1)
