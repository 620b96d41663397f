"""Predict accelerate's `load_checkpoint_and_dispatch`: it sets the stored tensors by name, then ties again.

The model is a class of transformers 5 that was made without memory and tied by its config. A stored tensor reaches the
parameter of the same name. Each tied group gets the loaded tensor whose name is first in the alphabet. A parameter
without a stored tensor has no values, and accelerate fails when it moves the model to its device.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import TWO_FORMATS, Layout
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Absence, Cause, Loaded, Parameter, Refusal, missing, stopped, unknown
from tieconv.loaders.transformers5 import config_refusals, flag_refusals
from tieconv.text import shown

_LOADER = "accelerate"
_WHOLE = ("pytorch_model.bin", "model.safetensors")
"""The files that accelerate looks for in a directory, in its order. Then it looks for an index."""


def load(inspection: Inspection) -> Loaded:
    """Return the model of the config's class after accelerate has loaded the directory."""
    refusal = next(_refusals(inspection), None)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    # The stored tensors that have another name in the class.
    renamed = {stored for stored, memory in inspection.family.renames if stored != memory}
    unread = frozenset(renamed & inspection.checkpoint.tensors.keys())
    read = evidence.without_tensors(inspection, unread)
    names = evidence.file_names(read)
    parameters = {name: _parameter(read, name) for name in names.values()}
    undecided = None
    for group in evidence.groups(read):
        if group.declared:
            undecided = undecided or _tie(group, parameters)
    absent = [name for name, parameter in parameters.items() if parameter.absence is Absence.UNSET]
    if absent:
        return stopped(_LOADER, missing(absent[:1]))
    return Loaded(_LOADER, names, parameters, unread=unread, undecided=undecided)


def _parameter(inspection: Inspection, name: str) -> Parameter:
    if name in inspection.checkpoint.tensors:
        return Parameter(name, name)
    # final_logits_bias is a buffer, and buffers keep their initial values.
    return Parameter(None, name, Absence.ZERO if inspection.family.bias_is_row and "bias" in name else Absence.UNSET)


def _tie(group: evidence.Group, parameters: dict[str, Parameter]) -> tuple[str, str] | None:
    """Give all names of a group the first loaded tensor. Return two of its tensors that were not compared."""
    stored = sorted(member.name for member in group.members if member.stored)
    if not stored:
        return None
    parameters |= dict.fromkeys((member.name for member in group.members), Parameter(stored[0], stored[0]))
    unread = {member.name for member in group.members if member.state is State.UNREAD}
    compared = unread.isdisjoint(stored)
    return None if compared or len(stored) == 1 else (stored[0], stored[1])


def _refusals(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why accelerate fails, or why tieconv makes no claim, in the order of the steps."""
    yield from filter(
        None, (evidence.unclear_files(inspection, TWO_FORMATS, "layout.ambiguous"), evidence.unclear_class(inspection))
    )
    yield from filter(
        None,
        (evidence.wrong_format(inspection, _LOADER, (evidence.SAFETENSORS, evidence.TORCH)), _other_file(inspection)),
    )
    if evidence.head_pair(inspection) is None:
        yield unknown("the architecture table does not name both the embedding and the head")
    yield from config_refusals(inspection)
    yield from flag_refusals(inspection)
    family = inspection.family
    start = "accelerate sets tensors by their names in the class, and transformers 5 renames tensors of"
    if family.text_class in release_tables.names(_LOADER, "renamed"):
        yield Refusal(Cause.NAMES, f"{start} {shown(family.architecture)}")
    for name, stored in evidence.file_names(inspection).items():
        if stored != name:
            yield Refusal(
                Cause.NAMES, f"the class names {shown(stored)} {shown(name)}, and accelerate does not rename it"
            )
    misfit = evidence.misshapen(inspection)
    if misfit is not None:
        yield Refusal(Cause.SHAPES, f"accelerate refuses the shape of {shown(misfit)}", (misfit,))


def _other_file(inspection: Inspection) -> Refusal | None:
    """Return why accelerate does not read the files that tieconv read."""
    checkpoint = inspection.checkpoint
    if checkpoint.layout is Layout.FILE:
        return None
    present = {file.name for file in (*checkpoint.files, *checkpoint.orphans)}
    if any(caution.code == TWO_FORMATS for caution in checkpoint.cautions):
        present.add(_WHOLE[0])
    opened = next((name for name in _WHOLE if name in present), checkpoint.entry)
    if opened is None or not opened.endswith((".index.json", *_WHOLE)):
        return Refusal(Cause.FILES, f"accelerate looks for {_WHOLE[0]}, {_WHOLE[1]} or an index, and finds no weights")
    if opened != checkpoint.entry:
        return unknown(f"accelerate opens {shown(opened)}, and tieconv read {shown(checkpoint.entry or '')}")
    return None


_SOURCE = "accelerate 1.15.0, utils/modeling.py, load_checkpoint_in_model, with transformers 5.23.0"
CONSUMERS = (Consumer(_LOADER, "1.15", since=(1, 0), cited=_SOURCE, load=load, ran=("1.15.0",)),)
