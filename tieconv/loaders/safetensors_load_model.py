"""``safetensors.torch.load_model``: strict about names, and tied as the model object is.

It loads one file into a model that transformers 5 built from the config: a tied model must find exactly one of its two
names.
"""

from __future__ import annotations

from tieconv.checkpoint.files.model_files import Layout
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import listed, verdict
from tieconv.loaders.tie_groups import Group, biases, groups, misshapen
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What `load_model` does with the file and the class of the config."""
    found, pair = _without_config(inspection) or facts.unclear(inspection), facts.pair(inspection)
    if found is not None:
        return found
    if inspection.checkpoint.format != facts.SAFETENSORS:
        return error(f"load_model reads safetensors files, not {shown(inspection.checkpoint.format)}")
    if pair is None:
        return unknown("the table does not name both the embedding and the head")
    if inspection.checkpoint.layout is Layout.SHARDED and len(inspection.checkpoint.files) > 1:
        return error("load_model reads one file, and the tensors of the other shards are missing from it")
    odd = misshapen(inspection)
    if odd is not None:
        return error(f"{shown(odd)} has another shape than the tensor that it is tied to", odd)
    renamed = next((stored for stored, memory in inspection.family.renames if stored != memory), None)
    if renamed is not None:
        return error(f"{shown(renamed)} has another name in the model, and load_model renames nothing", renamed)
    return _names(inspection, pair)


def _without_config(inspection: Inspection) -> Verdict | None:
    """The verdict where there is no config, which `load_model` does not need: it gets a model object."""
    checkpoint = inspection.checkpoint
    if checkpoint.config is not None or checkpoint.adapter is not None or checkpoint.format != facts.SAFETENSORS:
        return None
    return unknown("load_model needs no config: the model object that it fills decides which names it takes")


def _names(inspection: Inspection, pair: facts.Pair) -> Verdict:
    tensors = inspection.checkpoint.tensors
    for group in groups(inspection):
        stored = [name for name in group.names if name in tensors]
        if group.declared and len(stored) > 1:
            return error(
                f"{listed(stored)} are one parameter of the tied model, and load_model takes one name for it", *stored
            )
        missing = _missing(group, stored)
        if missing:
            return error(f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing from the file", *missing)
    extra = () if inspection.family.output_biases else facts.stored_bias(inspection)
    if extra:
        return error(f"{listed(extra)} is in the file and not in the model", *extra)
    absent = [
        name
        for name in (inspection.family.input_embedding, inspection.family.output_head)
        if name and name not in tensors and _is_alone(inspection, name)
    ]
    absent += [name for name in inspection.family.output_biases if name not in tensors and _is_alone(inspection, name)]
    if absent:
        return error(f"{listed(absent)} is missing from the file", *absent)
    tied = inspection.config.effective
    return verdict(
        Outcome.TIED if tied else Outcome.UNTIED,
        facts.tied(pair) if tied else facts.separate(pair),
        (pair.head, pair.embedding),
        _outer_bias(inspection),
    )


def _outer_bias(inspection: Inspection) -> tuple[str, ...]:
    """The outer name of an untied bias pair, where it holds other values than the inner one, which is used."""
    names = biases(inspection)
    if names is None or all(facts.same(member) for member in names.members if member.stored):
        return ()
    return (names.members[0].name,)


def _missing(group: Group, stored: list[str]) -> list[str]:
    if group.declared:
        return [] if stored else [group.names[0]]
    return [name for name in group.names if name not in stored]


def _is_alone(inspection: Inspection, name: str) -> bool:
    return not any(name in group.names for group in groups(inspection))


CONSUMERS = (
    Consumer(
        "safetensors",
        "0.8",
        since=(0, 4),
        before=None,
        measured=True,
        cited="safetensors 0.8.0, safetensors/torch.py, load_model",
        judge=judge,
    ),
)
