"""Trace the fp16 overflow guard of BART and related models without a branch on the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Unknown:
    """Replaces "is every element finite?" while tracing, and answers no, so that the guard is traced."""

    def all(self) -> bool:
        return False


@contextmanager
def always_clamped(model: Any) -> Iterator[None]:
    """Make fp16 encoders clamp always, not only after an overflow.

    They write ``if not torch.isfinite(x).all(): x = clamp(x, -m, m)``, m = 64504, which no tracer can follow. Clamping
    always gives the same values. The only exception is a value beyond 64504 if nothing overflowed. transformers 5.23
    uses `torch.isfinite` for nothing else.
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
