"""The base model's prefix in front of every name of a file that has it nowhere, where a head comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tieconv.checkpoint.family import Family
from tieconv.checkpoint.operation import CopyTensor, FillTensor, ScaleTensor
from tieconv.families import beside_base, is_bare
from tieconv.plans.edits import Edits

BARE = "transformers 4 refuses a head beside names without it"


def prefix(edits: Edits, family: Family) -> Mapping[str, str]:
    """Rename the tensors of a bare base model where a name that is none of its own is stored after the edits.

    The new name of each tensor that changes it, those that the edits add included; empty where nothing changes.
    """
    after, outside = edits.after(), set(beside_base(family))
    if not is_bare(family, after) or not outside & after:
        return {}
    renamed = {name: f"{family.prefix}.{name}" for name in sorted(after - outside)}
    for name in [name for name in edits.checkpoint.tensors if name in renamed and name not in edits.drops]:
        edits.rename(name, renamed[name])
    _rename_additions(edits, renamed)
    return renamed


def _rename_additions(edits: Edits, renamed: Mapping[str, str]) -> None:
    edits.additions = {
        renamed.get(name, name) if name not in edits.checkpoint.tensors else name: (
            replace(tensor, name=renamed.get(name, name)),
            beside,
        )
        for name, (tensor, beside) in edits.additions.items()
    }
    edits.operations = [
        replace(one, name=renamed.get(one.name, one.name))
        if isinstance(one, CopyTensor | FillTensor | ScaleTensor)
        else one
        for one in edits.operations
    ]
