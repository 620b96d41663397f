"""Make tied names one parameter before the export, by our inspection and not by what the loader does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Tie

_SAME = (State.CANONICAL, State.ABSENT, State.ALIASED, State.IDENTICAL)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tied_names(evidence: Inspection) -> tuple[tuple[str, ...], ...]:
    """Return groups of names in the checkpoint that hold one tensor: tied and consistent, or equal copies."""
    groups = (_one_tensor(tie) for tie in evidence.ties)
    return tuple(names for names in groups if len(names) > 1)


def _one_tensor(tie: Tie) -> tuple[str, ...]:
    members = [m for m in tie.members if m.state in _SAME and (m.stored or tie.declared)]
    return tuple(dict.fromkeys(member.name for member in members))


def join_ties(model: Any, evidence: Inspection) -> tuple[tuple[str, ...], ...]:
    """Make the parameters of each group one object; return the groups by the model's parameter names.

    Only parameters with the same bytes are joined. The inspection proved that the checkpoint's tensors are equal. The
    comparison here proves that the loader kept both unchanged.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    joined = []
    for tie in evidence.ties:
        loads = {m.name: m.loads_as or m.name for m in tie.members}
        names = [name for member in _one_tensor(tie) for name in _parameter(model, parameters, loads[member])]
        if len(names) > 1:
            first, *rest = dict.fromkeys(names)
            same = [name for name in rest if _equal(parameters[first], parameters[name])]
            for name in same:
                _replace(model, name, parameters[first])
            if same:
                joined.append((first, *same))
    return tuple(joined)


def _parameter(model: Any, parameters: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the parameter that loads a stored name. A checkpoint may have or lack the base model's prefix."""
    prefix = f"{model.base_model_prefix}."
    for candidate in (name, prefix + name, name.removeprefix(prefix)):
        if candidate in parameters:
            yield candidate
            return


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    bits = _BITS[left.element_size()]
    return bool(torch.equal(left.data.contiguous().view(bits), right.data.contiguous().view(bits)))


def _replace(model: Any, name: str, parameter: Any) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, parameter)
