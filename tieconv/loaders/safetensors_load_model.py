"""Predict ``safetensors.torch.load_model``: strict about names, and tied if the model object is tied.

It loads one file into a model that transformers 5 built from the config. For a tied model, the file must have exactly
one of the two names.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.stored_names import missing_layers, surplus_layers
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Layout
from tieconv.loaders import evidence
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal, missing, stopped, unknown
from tieconv.text import in_words, shown

_LOADER = "load_model"


def load(inspection: Inspection) -> Loaded:
    """Return the model of the config's class after `load_model` has read the file."""
    refusal = _without_config(inspection) or evidence.unclear_files(inspection) or evidence.unclear_class(inspection)
    refusal = refusal or _file_refused(inspection) or next(_names_refused(inspection), None)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    names = evidence.file_names(inspection)
    parameters = {name: Parameter(name, name) for name in names.values()}
    for group in evidence.groups(inspection):
        if group.declared:
            stored = next(member.name for member in group.members if member.stored)
            parameters |= dict.fromkeys((member.name for member in group.members), Parameter(stored, stored))
    return Loaded(_LOADER, names, parameters)


def _without_config(inspection: Inspection) -> Refusal | None:
    """Return the answer for a file without a config: `load_model` takes a model object instead."""
    checkpoint = inspection.checkpoint
    if checkpoint.config is not None or checkpoint.adapter is not None or checkpoint.format != evidence.SAFETENSORS:
        return None
    return unknown("load_model needs no config: the model object that you pass decides which names it accepts")


def _file_refused(inspection: Inspection) -> Refusal | None:
    checkpoint = inspection.checkpoint
    if checkpoint.format != evidence.SAFETENSORS:
        return Refusal(Cause.FILES, f"load_model reads safetensors files, not {shown(checkpoint.format)}")
    if evidence.head_pair(inspection) is None:
        return unknown("the architecture table does not name both the embedding and the head")
    if checkpoint.layout is Layout.SHARDED and len(checkpoint.files) > 1:
        sentence = "load_model reads only one file, and that file lacks the tensors of the other shards"
        return Refusal(Cause.FILES, sentence)
    misfit = evidence.misshapen(inspection)
    if misfit is not None:
        sentence = f"{shown(misfit)} and the tensor that it is tied to have different shapes"
        return Refusal(Cause.SHAPES, sentence, (misfit,))
    return None


def _names_refused(inspection: Inspection) -> Iterator[Refusal]:
    family, tensors = inspection.family, inspection.checkpoint.tensors
    renamed = next((stored for stored, memory in family.renames if stored != memory), None)
    if renamed is not None:
        sentence = f"the model has another name for {shown(renamed)}, and load_model does not rename tensors"
        yield Refusal(Cause.NAMES, sentence, (renamed,))
    for group in evidence.groups(inspection):
        stored = [name for name in group.names if name in tensors]
        if group.declared and len(stored) > 1:
            sentence = f"{in_words(stored)} are one parameter of the tied model, and load_model accepts one name for it"
            yield Refusal(Cause.NAMES, sentence, tuple(stored))
        absent = [name for name in group.names if name not in stored]
        yield from _missing(absent if not group.declared else [] if stored else [group.names[0]])
    for lack in missing_layers(inspection):
        yield missing(lack.names)
    for _, names, _ in surplus_layers(inspection):
        noun = "layer" if names[0][-1].isdigit() else "parameter"
        yield Refusal(Cause.NAMES, f"the model class has no {noun} {in_words(names)}", tuple(names))
    extra = () if family.output_biases else evidence.stored_bias(inspection)
    if extra:
        yield Refusal(Cause.NAMES, f"the model class has no parameter {in_words(extra)}", extra)
    grouped = {name for group in evidence.groups(inspection) for name in group.names}
    single = (family.input_embedding, family.output_head, *family.output_biases)
    yield from _missing([name for name in single if name and name not in grouped and name not in tensors])


def _missing(names: list[str]) -> Iterator[Refusal]:
    if names:
        yield missing(names)


_SOURCE = "safetensors 0.8.0, safetensors/torch.py, load_model"
CONSUMERS = (Consumer("safetensors", "0.8", since=(0, 4), cited=_SOURCE, load=load, ran=("0.8.0",)),)
