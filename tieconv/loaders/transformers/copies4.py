"""Predict whether transformers 4.48 copies stored tensors into the parameters, or makes them the parameters.

From `check_support_param_buffer_assignment` of transformers 4.48.3. The model is tied before it is loaded. If tensors
are copied, the names of one parameter are written one after the other. The last in the order of the modules stays. If
they are assigned, the tie after loading gives all names the values of the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import in_file

_RELEASE = "transformers-4.48"
_DTYPE = "F32"
"""The dtype of a model that is loaded without `torch_dtype`."""


def copies_in_place(inspection: Inspection) -> bool | None:
    """Return whether tensors are copied; ``None`` if the first tensor of the class is not known.

    Tensors are assigned if the first file has the first name of the state dict, in the model's dtype.
    """
    family, checkpoint = inspection.family, inspection.checkpoint
    if family.architecture in release_tables.names(_RELEASE, "copied in place"):
        return True
    first = release_tables.by_type(_RELEASE, "first tensor").get(family.architecture or "", family.input_embedding)
    if first is None:
        return None
    stored = checkpoint.tensors.get(in_file(inspection, first) if first == family.input_embedding else first)
    if stored is None or stored.dtype != _DTYPE:
        return True
    return stored.range.file != min(tensor.range.file for tensor in checkpoint.tensors.values())


def as_copied(
    inspection: Inspection, names: Sequence[str], members: Sequence[Member], taken: Sequence[int | None], source: str
) -> tuple[int | None, ...]:
    """Return ``taken``, the table that each of ``names`` gets, for tensors that are copied or assigned.

    Of copied tables, the last one stays: files come before modules, and the head is the last module. Assigned tables
    leave the tied names random if ``source``, the name that the tie reads, is not stored.
    """
    copied = copies_in_place(inspection)
    tensors, head = inspection.checkpoint.tensors, inspection.family.output_head
    stored = [index for index, member in enumerate(members) if member.name in tensors]
    if copied is None or len(set(taken)) != 1 or not stored:
        return tuple(taken)
    if not copied:
        return tuple(taken) if source in tensors else (None,) * len(names)

    def order(index: int) -> tuple[str, bool, int]:
        return tensors[members[index].name].range.file, names[index] == head, index

    return (max(stored, key=order),) * len(names)
