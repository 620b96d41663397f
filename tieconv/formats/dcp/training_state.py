"""Tell the tensors of a model from those of the optimizer and of other training state, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DICTIONARY = re.compile(r"optim(\w*)|\w*(optimizers?|schedulers?|dataloader|rng_states?|train_state|grad_scaler)")
"""Keys of dictionaries around the model's state dict that hold no weights."""
_STATE = frozenset(
    {
        *("exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"),
        *("acc_delta", "sum", "prev", "step_size", "master_param", "master_weight", "fp32_param"),
    }
)
"""Names of the state that optimizers of torch, Apex and Megatron keep for each parameter."""
_PARAMETER = re.compile(r"\.(weight|bias)\.")
_OUTER = 3
"""The most dictionaries around a state dict: ``app``, ``optim`` and ``state``."""


def is_training_state(name: str, keys: Sequence[str]) -> bool:
    """Return whether a tensor belongs to the training state. ``keys`` is its path of dictionary keys, if known.

    Parts of a module's name never decide alone: a module may be called ``optim`` at a deeper level.
    """
    parts = list(keys[:-1]) if len(keys) > 1 else name.split(".")[:_OUTER]
    if any(_DICTIONARY.fullmatch(part) for part in parts[:_OUTER]) and len(name.split(".")) > 1:
        return True
    ending = name.rpartition(".")[2]
    return ending in _STATE and (ending not in {"sum", "prev"} or bool(_PARAMETER.search(name)))
