"""Models in memory: a torch module as the input of an inspection. Nothing here imports torch by itself."""

from __future__ import annotations

import sys


def is_module(value: object) -> bool:
    """Return whether ``value`` is a `torch.nn.Module`. Without an imported torch, nothing is one."""
    network = getattr(sys.modules.get("torch"), "nn", None)
    return network is not None and isinstance(value, network.Module)
