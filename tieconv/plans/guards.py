"""Refuse to write, with one sentence and the next command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from tieconv.architectures import lookup, unexplained
from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.model_files import BLOCKING, Checkpoint, Layout, way_out
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.errors import RefusedError
from tieconv.text import Hint, call, option, shown


def refuse(reason: str, hint: str, code: str, *, source: str = "") -> NoReturn:
    """Raise `RefusedError`. Its message starts with ``source``, if given."""
    raise RefusedError(reason, hint, code, source=source)


def again(inspection: Inspection, verb: str, **options: object) -> Hint:
    """Return the command ``verb`` for the same model."""
    return call(verb, inspection.checkpoint.source, **options)


def choose_values(inspection: Inspection, verb: str, first: str, second: str, **options: object) -> Hint:
    """Return the hint that ``verb`` can keep the values of either tensor."""
    chosen = again(inspection, verb, survivor=first, **options)
    return Hint("choose the values to keep: ", chosen, " (or ", option(survivor=second), ")")


def guard(inspection: Inspection, verb: str, *, quantised: bool = False) -> None:
    """Refuse a model that tieconv must not tie or untie. The planner handles ``quantised`` tables itself."""
    assert inspection.depth is not Depth.HEADER, "a plan needs proved states"
    guard_layout(inspection)
    _guard_knowledge(inspection, verb)
    _guard_tying(inspection, verb)
    if not quantised:
        _guard_quantised(inspection)


def guard_class(inspection: Inspection, verb: str) -> None:
    """Refuse a class that tieconv must not tie or untie. Needs headers only."""
    _guard_knowledge(inspection, verb)
    _guard_tying(inspection, verb)
    _guard_quantised(inspection)


def guard_head(inspection: Inspection, verb: str) -> None:
    """Refuse a model whose head bias or flag tieconv must not change. Accepts a class that never ties."""
    assert inspection.depth is not Depth.HEADER, "a plan needs proved states"
    guard_layout(inspection)
    _guard_knowledge(inspection, verb)
    if inspection.family.tying is Tying.HEADLESS and verb != "resize":  # an encoder has an embedding to resize
        label = inspection.family.architecture or shown(inspection.checkpoint.source)
        refuse(f"{label} has no output embedding by design", again(inspection, "inspect"), "tie.headless")


def guard_layout(inspection: Inspection, *, allowed: str = "") -> None:
    """Refuse a model whose files contradict each other, except for the caution ``allowed``."""
    _guard_format(inspection)
    _guard_layout(inspection, allowed)


def guard_contents(inspection: Inspection) -> None:
    """Refuse a model whose files contradict each other, in any format."""
    assert inspection.depth is not Depth.HEADER, "a plan needs proved states"
    _guard_layout(inspection)


def _guard_format(inspection: Inspection) -> None:
    checkpoint = inspection.checkpoint
    if checkpoint.format == "gguf":
        problem = f"{shown(checkpoint.source)} is a GGUF file: only retie and untie change it"
        refuse(problem, checkpoint.read_only, "format.read-only")
    if checkpoint.read_only:
        problem = f"{shown(checkpoint.source)} has the format {checkpoint.format}, which tieconv reads but never writes"
        refuse(problem, checkpoint.read_only, "format.read-only")


def _guard_layout(inspection: Inspection, allowed: str = "") -> None:
    source = shown(inspection.checkpoint.source)
    for caution in inspection.checkpoint.cautions:
        if caution.code in BLOCKING and caution.code != allowed:
            hint = way_out(caution, inspection.checkpoint)
            refuse(caution.message, hint, caution.code, source=source)
    if inspection.checkpoint.special:
        problem = f"{source} contains {shown(inspection.checkpoint.special[0])}, which is not a regular file"
        refuse(problem, "move that file out of the directory", "path.not-regular")


def _guard_knowledge(inspection: Inspection, verb: str) -> None:
    family = inspection.family
    names = unexplained(inspection)
    if names:
        refuse(
            f"{shown(names[0])} may be part of the output head or input embedding, and tieconv does not know its form",
            "work on the checkpoint before it was quantised or renamed",
            "tie.unexplained",
            source=shown(inspection.checkpoint.source),
        )
    if family.trusted:
        return
    known = inspection.config.architectures
    config = inspection.checkpoint.config_values
    reason = f"tieconv does not know {lookup.subject(known[0], config)}" if known else "the architecture is unknown"
    embed, head = family.input_embedding or "NAME", family.output_head or "NAME"
    problem = f"{reason}, so the tied tensors are a guess"
    hint = Hint("give their names: ", again(inspection, verb, embed=embed, head=head))
    refuse(problem, hint, "family.unknown", source=shown(inspection.checkpoint.source))


def _guard_tying(inspection: Inspection, verb: str) -> None:
    for reason, code in _tying_reasons(inspection, verb):
        refuse(reason, again(inspection, "inspect"), code)


def _tying_reasons(inspection: Inspection, verb: str) -> Iterator[tuple[str, str]]:
    """Yield why nothing can be tied or untied, and the code of that reason."""
    family = inspection.family
    label = family.architecture or shown(inspection.checkpoint.source)
    if family.tying is Tying.HEADLESS:
        yield f"{label} has no output embedding by design, so there is nothing to {verb}", "tie.headless"
    if family.tying is Tying.NEVER:
        never = f"{label} never ties its output embedding, whatever the config says"
        yield f"{never}, so there is nothing to {verb}", "tie.never"
    if family.output_head is not None and family.output_head == family.input_embedding:
        shared_name = f"{label} uses its input embedding as the output head"
        yield f"{shared_name}, so the model has no second tensor to {verb}", "tie.one-name"
    if inspection.word_tie is None and inspection.quantised is None:
        source = shown(inspection.checkpoint.source)
        yield f"{source} stores neither the input nor the output embedding of {label}", "tie.absent"


def _guard_quantised(inspection: Inspection) -> None:
    """Refuse a quantised head or embedding: codes and scales cannot be compared with floats."""
    for reason in _quantised_reasons(inspection):
        refuse(reason, "work on the unquantised checkpoint and quantise again", "tie.quantised")


def _quantised_reasons(inspection: Inspection) -> Iterator[str]:
    tensors = inspection.checkpoint.tensors
    tie = inspection.word_tie
    if inspection.quantised is not None and inspection.checkpoint.format != "gguf" and tie is None:
        yield f"{shown(inspection.quantised.matrices[0].name)} is quantised, so it cannot be compared with floats"
    for member in tie.members if tie is not None else ():
        twin = quantised_twin(member.name, tensors)
        if twin:
            yield f"{shown(member.name)} is quantised ({shown(twin)} is stored), so it cannot be compared or copied"
        if member.stored and tensors[member.name].dtype not in FLOATS:
            dtype = shown(tensors[member.name].dtype)
            yield f"{shown(member.name)} has dtype {dtype}, whose values need scales from another tensor"


def guard_lone_config(inspection: Inspection, flag_changes: bool) -> None:
    """Refuse to write a weight file by itself if the config beside it must change too."""
    if flag_changes and inspection.checkpoint.layout is Layout.FILE and inspection.checkpoint.config:
        problem = "the config.json in the same directory must change too"
        hint = "give the model's directory instead of the file"
        refuse(problem, hint, "config.beside", source=shown(inspection.checkpoint.source))


MANY = 200_000
"""The most tensors of a small model that a command writes. 500,000 tensors of one byte take 460 MB of memory."""
MANY_FOR_TORCH = 60_000
"""The same for a torch file: 500,000 tensors of one byte take 1,500 MB."""
_SMALL, _LONG = 2048, 128
"""A model of fewer bytes a tensor is small. 128 characters of names count as a tensor: names of 75 MB took 500 MB."""


def guard_many(checkpoint: Checkpoint, most: int = MANY) -> None:
    """Refuse to write a small model with more than ``most`` tensors, whose plan would take more than 300 MiB."""
    number, letters = len(checkpoint.tensors), sum(map(len, checkpoint.tensors))
    weight = number + letters // _LONG
    if weight > most and sum(record.nbytes for record in checkpoint.tensors.values()) < _SMALL * weight:
        problem = f"{shown(checkpoint.source)} has {number:,} tiny tensors, whose names have {letters:,} characters"
        hint = Hint(call("inspect"), " and check read the model; join the tensors, or leave out what is not a weight")
        refuse(f"{problem}: a write would take over 300 MiB of memory", hint, "plan.many-tensors")
