"""The overflow guard of BART and its kin in fp16, traced without a branch on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Unknown:
    """Stands for "is every element finite?" while tracing; the answer that leads into the guard."""

    def all(self) -> bool:
        return False


@contextmanager
def always_clamped(model: Any) -> Iterator[None]:
    """Inside, fp16 encoders clamp always and not only where a value overflowed.

    They write ``if not torch.isfinite(x).all(): x = clamp(x, -m, m)``, m = 64504, which no tracer can follow. Clamping
    always gives the same values, but for those beyond 64504 where nothing overflowed. In all of transformers 5.23
    `torch.isfinite` is asked for nothing else.
    """
    if model.dtype != torch.float16 or not getattr(model.config, "is_encoder_decoder", False):
        yield
        return
    before = torch.isfinite
    torch.isfinite = lambda tensor: _Unknown()
    try:
        yield
    finally:
        torch.isfinite = before
