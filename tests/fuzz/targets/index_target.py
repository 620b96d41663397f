"""Shard indexes: a map that names other files, other tensors, other sizes, or is no map."""

from __future__ import annotations

import json
import random

from tests.fuzz.case import Case
from tests.fuzz.models import EMBED, HEAD, config, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES
from tests.fuzz.mutate.json_tree import Pairs, damaged

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
_FILES = (
    ONE, TWO, "./" + ONE, "../" + ONE, "/etc/passwd", "config.json", INDEX, "model.safetensors", "sub/" + ONE,
    ONE.upper(),
)  # fmt: skip
_EXTRA: tuple[object, ...] = (
    *_FILES,
    EMBED,
    HEAD,
    0,
    256,
    1 << 63,
    Pairs([[EMBED, ONE]]),
    Pairs([[HEAD, TWO], [HEAD, ONE]]),
)


def make(rng: random.Random) -> Case:
    """Return a model of two shards whose index is damaged."""
    stored = tensors(copy=rng.random() < 0.5)
    shards = {ONE: {name: each for name, each in stored.items() if name != HEAD}, TWO: {HEAD: stored[HEAD]}}
    if rng.random() < 0.1:
        shards[TWO][EMBED] = stored[EMBED]
    files = {name: safetensors(part) for name, part in shards.items()}
    mapped = {name: shard for shard, part in shards.items() for name in part}
    size = sum(len(raw) for _, _, raw in stored.values())
    index = {"metadata": {"total_size": size}, "weight_map": mapped}
    files[INDEX] = damaged(rng, index, _EXTRA) if rng.random() < 0.9 else json.dumps(index).encode()
    draw = rng.random()
    if draw < 0.08:
        del files[rng.choice((ONE, TWO))]
    elif draw < 0.14:
        files[rng.choice((ONE, TWO))] = rng.choice((b"", files[TWO][:-1], b"{}", files[TWO]))
    elif draw < 0.2:
        name = rng.choice((*NAMES[:10], "model.safetensors", "model-00003-of-00003.safetensors")).replace("\0", "0")
        files[name or "x"] = files.get(TWO, b"")
    if rng.random() < 0.5:
        files["config.json"] = config()
    model = rng.choice((".", ".", INDEX))
    is_read = model == INDEX or "model.safetensors" not in files  # one whole file goes before an index
    return Case("index", files, model, "json", (INDEX,) if is_read else ())
