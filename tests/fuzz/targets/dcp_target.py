"""Torch's distributed checkpoints: the pickle of their metadata, opcode by opcode.

No reference reader: torch's own unpickles without an allow-list, which would run what a damaged pickle names.
`bases/dcp.metadata` is what `torch.distributed.checkpoint.save` of torch 2.13 wrote for three tensors and a counter.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.models import config
from tests.fuzz.mutate.edits import edited
from tests.fuzz.mutate.pickle_ops import changed

BASE = Path(__file__).parents[1] / "bases" / "dcp.metadata"


@lru_cache
def _metadata() -> bytes:
    return BASE.read_bytes()


def make(rng: random.Random) -> Case:
    """Return a checkpoint whose metadata is damaged."""
    data = changed(rng, _metadata(), rng.choice((1, 1, 1, 3))) if rng.random() < 0.9 else _metadata()
    if rng.random() < 0.12:
        data = edited(rng, data, most=2)
    files = {".metadata": data, "__0_0.distcp": bytes(6184)}
    if rng.random() < 0.1:
        del files["__0_0.distcp"]
    if rng.random() < 0.4:
        files["config.json"] = config()
    return Case("dcp", files, ".")
