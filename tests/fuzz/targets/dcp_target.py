"""Torch's distributed checkpoints: the pickle of their metadata, opcode by opcode, and the chunks of two ranks.

The reference is torch's reader of metadata and its planner, with an unpickler that imports only allowed names.
`bases/dcp.metadata` and `bases/dcp-N.distcp` are a table in chunks of rows, a head in chunks of columns, an optimizer's
state and a counter, each chunk by `torch.save` of torch 2.13.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.models import config
from tests.fuzz.mutate.edits import edited
from tests.fuzz.mutate.pickle_ops import changed

BASES = Path(__file__).parents[1] / "bases"


@lru_cache
def _base(name: str) -> bytes:
    return (BASES / name).read_bytes()


def make(rng: random.Random) -> Case:
    """Return a checkpoint whose metadata or chunks are damaged."""
    data = _base("dcp.metadata")
    if rng.random() < 0.7:
        data = changed(rng, data, rng.choice((1, 1, 1, 3)))
    if rng.random() < 0.12:
        data = edited(rng, data, most=2)
    files = {".metadata": data, **{f"__{rank}_0.distcp": _base(f"dcp-{rank}.distcp") for rank in range(2)}}
    if rng.random() < 0.3:
        chunks = f"__{rng.randrange(2)}_0.distcp"
        files[chunks] = edited(rng, files[chunks], most=3)
    if rng.random() < 0.1:
        del files["__0_0.distcp"]
    if rng.random() < 0.4:
        files["config.json"] = config()
    return Case("dcp", files, ".", "dcp", (".metadata",))
