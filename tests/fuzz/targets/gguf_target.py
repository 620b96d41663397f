"""GGUF: counts, types, alignments, offsets and metadata that lie."""

from __future__ import annotations

import random
import struct

from fixtures.gguf_bytes import ALIGNMENT, Tensor, entry, info, text
from tests.fuzz.case import Case
from tests.fuzz.models import numbers
from tests.fuzz.mutate.edits import NAMES, edited, size

NAME = "model.gguf"
KINDS = (0, 1, 2, 8, 12, 24, 26, 28, 30, 4, 5, 31, 36, 99, 1 << 31)


def make(rng: random.Random) -> Case:
    """Return a damaged GGUF file."""
    tensors: list[Tensor] = [
        ("token_embd.weight", (8, 32), 0, numbers(256, 1)),
        ("output.weight", (8, 32), 0, numbers(256, rng.choice((1, 2)))),
        ("output_norm.weight", (32,), 0, numbers(32, 3)),
    ]
    del tensors[rng.choice((1, 3)) : 2]
    entries = [entry("general.architecture", "llama"), entry("llama.vocab_size", 8)]
    entries.append(entry("tokenizer.ggml.tokens", ["a", "b", ""]))
    for _ in range(rng.randint(0, 2)):
        _add(rng, entries)
    infos, data = [], b""
    for one in tensors:
        infos.append(info(_spoilt(rng, one) if rng.random() < 0.2 else one, _offset(rng, len(data))))
        data += one[3] + bytes(-len(one[3]) % ALIGNMENT)
    if rng.random() < 0.08:
        infos.insert(0, rng.choice(infos))
    counts = [len(infos), len(entries)]
    if rng.random() < 0.08:
        counts[rng.randrange(2)] = size(rng, len(infos)) % (1 << 64)
    version = 3 if rng.random() < 0.95 else rng.choice((0, 1, 2, 4, 1 << 24, 1 << 31))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(infos)
    if rng.random() < 0.35:
        head = edited(rng, head, 24, len(head), 2)
    whole = head + bytes(-len(head) % ALIGNMENT) + data
    if rng.random() < 0.1:
        whole = rng.choice((whole[:-1], whole[: -rng.randint(1, 300)], whole + bytes(7), edited(rng, whole, most=1)))
    return Case("gguf", {NAME: whole}, rng.choice((".", NAME)), "gguf", (NAME,))


def _offset(rng: random.Random, offset: int) -> int:
    return offset if rng.random() < 0.92 else size(rng, offset) % (1 << 64)


def _spoilt(rng: random.Random, tensor: Tensor) -> Tensor:
    name, shape, kind, data = tensor
    draw = rng.randrange(3)
    if draw == 0:
        return (rng.choice(NAMES), shape, kind, data)
    if draw == 1:
        return (name, shape, rng.choice(KINDS), data)
    sides = (0, 1, 4, 8, 31, 32, 256, 1 << 31, 1 << 62, (1 << 64) - 1)
    return (name, tuple(rng.choice(sides) for _ in range(rng.randint(0, 5))), kind, data)


def _add(rng: random.Random, entries: list[bytes]) -> None:
    """Put in one entry: of any type, with any name, or one that decides where the data begins."""
    draw = rng.randrange(5)
    if draw == 0:
        made = entry("general.alignment", rng.choice((0, 1, 8, 12, 32, 64, 4096, 1 << 31)))
    elif draw == 1:
        made = entry(rng.choice(NAMES), rng.choice((*NAMES, 7)))
    elif draw == 2:
        made = text("x") + struct.pack("<I", rng.randrange(14)) + rng.randbytes(8)
    elif draw == 3:
        made = text("x") + struct.pack("<IIQ", 9, rng.randrange(14), rng.choice((0, 1, 2, 1 << 40))) + rng.randbytes(16)
    else:
        made = entry(rng.choice(("general.architecture", "x")), rng.choice(NAMES))
    entries.insert(rng.randint(0, len(entries)), made)
