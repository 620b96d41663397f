"""Torch's legacy files: five pickles in a row, then the storages."""

from __future__ import annotations

import pickle
import random
import struct

from fixtures.torch_files import MAGIC, pickled, state, storage, tensor, text
from tests.fuzz.case import Case
from tests.fuzz.models import config, numbers
from tests.fuzz.mutate.edits import edited, size
from tests.fuzz.mutate.pickle_ops import changed

NAME = "pytorch_model.bin"


def make(rng: random.Random) -> Case:
    """Return a model whose weights are a damaged legacy file."""
    weights = pickled(
        state(
            text("model.embed_tokens.weight") + tensor((8, 4), (4, 1), pid=_view("0", 32)),
            text("lm_head.weight") + tensor((8, 4), (4, 1), pid=_view(rng.choice("01"), 32)),
            text("model.norm.weight") + tensor((4,), (1,), rng.choice((0, 28)), pid=_view("0", 32)),
        )
    )
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    keys = sorted({key for key in ("0", "1") if text(key) in weights})
    parts = [pickle.dumps(MAGIC, 2), pickle.dumps(1001, 2), pickle.dumps(system, 2), weights, pickle.dumps(keys, 2)]
    tails = [struct.pack("<q", 32) + numbers(32, 1 + 3 * place) for place in range(len(keys))]
    draw = rng.random()
    if draw < 0.75:
        at = rng.choices(range(5), (1, 1, 1, 6, 2))[0]
        parts[at] = changed(rng, parts[at], rng.choice((1, 1, 1, 3)))
    if draw > 0.65 and tails:
        at = rng.randrange(len(tails))
        tails[at] = rng.choice(
            (b"", tails[at][:-1], struct.pack("<q", _signed(size(rng, 32))) + tails[at][8:], tails[at] * 2)
        )
    if rng.random() < 0.1:
        rng.shuffle(parts)
    data = b"".join(parts) + b"".join(tails)
    if rng.random() < 0.15:
        data = edited(rng, data, most=2)
    files = {NAME: data, **({"config.json": config()} if rng.random() < 0.5 else {})}
    return Case("pickle", files, rng.choice((".", NAME)), "torch", (NAME,))


def _view(key: str, elements: int) -> bytes:
    """Return a persistent id with the sixth field that legacy files have."""
    made = storage(key, elements)
    return made[:-2] + b"NtQ"


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
