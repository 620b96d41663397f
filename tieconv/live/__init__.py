"""Models in memory: a torch module as the input of an inspection. Nothing here imports torch by itself."""

from __future__ import annotations

import sys
from typing import Any

from tieconv.errors import RefusedError
from tieconv.text import Hint, call


def is_module(value: object) -> bool:
    """Return whether ``value`` is a `torch.nn.Module`. Without an imported torch, nothing is one."""
    network = getattr(sys.modules.get("torch"), "nn", None)
    return network is not None and isinstance(value, network.Module)


def unwrapped(module: Any) -> Any:
    """Return the innermost model. Raises `RefusedError` for FSDP1, which flattens parameters."""
    while True:
        flat = sys.modules.get("torch.distributed.fsdp")
        if flat is not None and isinstance(module, flat.FullyShardedDataParallel):
            problem = "FSDP1 flattens parameters, so tieconv cannot tell which of them are tied"
            hint = Hint("use FSDP2 (fully_shard), or check the saved directory: ", call("check", Hint("DIR")))
            raise RefusedError(problem, hint, "live.fsdp1")
        children = dict(module.named_children())
        # DDP, DeepSpeed, accelerate and `torch.compile` hold the model under these names.
        inner = next((children[name] for name in ("module", "_orig_mod") if [*children] == [name]), None)
        if inner is None or "config" in vars(module):
            return module
        module = inner


def is_peft(module: Any) -> bool:
    """Return whether the module is a model of PEFT. Without an imported peft, nothing is one."""
    kind = getattr(sys.modules.get("peft"), "PeftModel", None)
    return kind is not None and isinstance(module, kind)
