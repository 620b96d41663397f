"""Models that are large enough for a range to be a small part of them, and what an inspection says of them."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

from tieconv import inspect
from tieconv.formats.safetensors import encode_header

ROWS, WIDTH = 2048, 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False, "vocab_size": ROWS,
    "hidden_size": WIDTH,
}  # fmt: skip
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def noise(size: int, seed: int) -> bytes:
    """BF16 numbers between 0.5 and 2."""
    numbers = bytearray(b"\0\x3f") * (size // 2)
    numbers[::2] = random.Random(seed).randbytes(size // 2)
    return bytes(numbers)


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


def inspected(result: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def local(path: Path, **options: object) -> dict[str, object]:
    """What `inspect --json` says of a directory."""
    return dict(json.loads(str(inspect(path, **options))))  # type: ignore[arg-type]


def states(document: dict[str, object]) -> dict[str, tuple[str, dict[str, object]]]:
    ties = document["ties"]
    assert isinstance(ties, list)
    return {member["name"]: (member["state"], member["detail"]) for tie in ties for member in tie["members"]}


def verdict(document: dict[str, object]) -> dict[str, object]:
    """What does not depend on where the model is."""
    model = dict(document["model"])  # type: ignore[call-overload]
    for key in ("source", "revision", "fetched"):
        model.pop(key, None)
    told = json.loads(json.dumps({**document, "model": model}))
    for finding in told["findings"]:
        finding["remedy"] = finding["remedy"] and finding["remedy"]["safe"]
    return dict(told)
