"""The staging directory that `convert --resume` finds: a marker, and files that a killed run or an archive left."""

from __future__ import annotations

import json
import random
import socket

from tests.fuzz.case import LINK, OPEN, PIPE, Case
from tests.fuzz.mutate.edits import edited
from tests.fuzz.mutate.json_tree import damaged
from tests.fuzz.runner import CONVERT
from tests.fuzz.targets.runs_target import GOOD
from tieconv.execute.staging import SIZE, Owner

PLACE = ".out.tieconv-staging"
_NAMES = ("model.safetensors", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
          "model.safetensors.index.json", "../old/x", "../earlier/x", "sub", "sub/model.safetensors")  # fmt: skip


def make(rng: random.Random) -> Case:
    """Return a good model, and beside OUT a staging directory in which a few things are wrong."""
    owner = Owner(4_000_000, socket.gethostname()[:64], rng.choice(("", "another boot")))
    marker = owner.encode()
    if rng.random() < 0.3:
        marker = damaged(rng, json.loads(marker), (0, -1, 1 << 64, "tieconv", owner.host))
        marker = marker.ljust(SIZE) if rng.random() < 0.5 else marker
    files = {**GOOD, "victim": b"precious", f"{PLACE}/owner": marker}
    weights = GOOD["good/model.safetensors"]
    for name in rng.sample(_NAMES, rng.randint(0, 4)):
        plants = (LINK + b":../../victim", LINK + b":../../good/model.safetensors", PIPE + b":", OPEN + b":" + weights)
        content = rng.choice((weights, edited(rng, weights), b"", bytes(len(weights)), *plants))
        files[f"{PLACE}/new/{name}"] = content
    if rng.random() < 0.05:
        files[f"{PLACE}/{rng.choice(('new', 'old', 'owner', 'x', 'earlier'))}"] = rng.choice((b"", LINK + b":../good"))
    words = (*CONVERT, "model/out", "--resume")
    return Case("resume", files, commands=(words,), written=("out", PLACE, "clean"))
