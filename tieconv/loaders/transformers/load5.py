"""What transformers 5 makes of a model: each declared pair is tied in turn, by which of the two the file holds.

From `PreTrainedModel.tie_weights` of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from tieconv.architectures.flag_levels import FLAG, cannot_build
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.interface import Absent, Aliased, Canonical
from tieconv.checkpoint.relation.proved import (
    Cast,
    Different,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherSample,
    OtherShape,
    RowFigures,
    Scaled,
    Transposed,
    Unread,
)
from tieconv.checkpoint.tie_group import Member
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders.as_read import as_read
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal
from tieconv.loaders.tie_groups import Group, discarded, file_names, groups, head_factor, misshapen, untied
from tieconv.loaders.transformers.names5 import RELEASE, steps, unread
from tieconv.text import shown

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_COARSER = {"F16": 1 << 13, "BF16": 1 << 16}
"""float32 steps in one step of a narrower type: copies that lie further apart stay apart when they are rounded."""

Guesses = Mapping[tuple[str, str], bool]


class _UndecidedError(Exception):
    """Whether two tensors are equal once loaded does not follow from what was compared."""


def load(inspection: Inspection, guesses: Guesses | None = None) -> Loaded:
    """The model. ``guesses`` says of stored pairs that were not compared whether they are equal; else not."""
    lost = unread(inspection.family, inspection.checkpoint.tensors)
    reading = as_read(inspection, lost)
    parameters = untied(reading, RELEASE)
    open_pairs = [_tie(reading, group, parameters, guesses or {}) for group in groups(reading)]
    head = facts.in_file(reading, reading.family.output_head) if reading.family.output_head else ""
    if head in parameters:
        own, factor = parameters[head], head_factor(reading, reading.family.meaning_v5, reading.family.default_v5)
        parameters[head] = Parameter(own.stored, own.parameter, own.absence, factor)
    return Loaded(
        "transformers 5",
        file_names(reading),
        parameters,
        unread=lost,
        discarded=discarded(reading, parameters, lost),
        refusals=tuple(_refusals(reading)),
        undecided=next(filter(None, open_pairs), None),
    )


def _tie(
    inspection: Inspection, group: Group, parameters: dict[str, Parameter], guesses: Guesses
) -> tuple[str, str] | None:
    """Tie the names of one group; the first stored pair of which nobody knows whether it is equal."""
    names = {name: member.name for name, member in zip(group.names, group.members, strict=True)}
    held = [member.stored for member in group.members]
    undecided = None
    for give, take, both in steps(inspection.family, group.names, held) if group.declared else ():
        source, target = parameters[names[give]], parameters[names[take]]
        if both:
            try:
                equal = _equal(inspection, group, source.stored, target.stored, guesses)
            except _UndecidedError as pair:
                undecided, equal = undecided or pair.args, False
            if not equal:
                continue  # both are stored and differ: each stays as it is
            parameters[names[take]] = Parameter(target.stored, source.parameter)
        else:
            parameters[names[take]] = Parameter(source.stored, source.parameter, source.absence)
    return undecided


def _equal(inspection: Inspection, group: Group, one: str | None, two: str | None, guesses: Guesses) -> bool:
    members = {member.name: member for member in group.members}
    if one == two or one is None or two is None:
        return True
    if (one, two) in guesses:
        return guesses[one, two]
    try:
        return _compared(inspection, members[one], members[two])
    except _UndecidedError:
        raise _UndecidedError(one, two) from None


def _compared(inspection: Inspection, first: Member, second: Member) -> bool:
    if State.CANONICAL not in (first.state, second.state):
        one_is, two_is = _as_reference(inspection, first), _as_reference(inspection, second)
        if not one_is and not two_is:
            raise _UndecidedError
        return one_is and two_is
    return _as_reference(inspection, second if first.state is State.CANONICAL else first)


def _as_reference(inspection: Inspection, member: Member) -> bool:
    """Whether a stored member equals the group's reference by value, in the type that the model is loaded in."""
    dtype = load_dtype(inspection)
    match member.relation:
        case Canonical() | Aliased() | Identical():
            return not member.relation.holds_nan
        case Cast(lossless=True):
            return True
        case Cast(narrow=narrow) if dtype is not None:
            return dtype == inspection.checkpoint.tensors[narrow].dtype
        case Unread() | Cast():
            raise _UndecidedError
        case Near(figures=figures) | Different(figures=figures) if figures.sign_of_zero_only:
            return True
        case Near(figures=figures):
            if _may_round_to_equal(inspection, member, figures, dtype):
                raise _UndecidedError
            return False
        case Absent() | Transposed() | Scaled() | Different() | Empty() | OtherShape() | OtherBytes() | OtherSample():
            return False
        case _:
            assert_never(member.relation)


def _may_round_to_equal(inspection: Inspection, member: Member, figures: RowFigures, dtype: str | None) -> bool:
    if inspection.checkpoint.tensors[member.name].dtype != "F32" or dtype not in _COARSER:
        return False
    return figures.max_ulp is None or figures.max_ulp < _COARSER[dtype]


def load_dtype(inspection: Inspection) -> str | None:
    """The type that ``dtype="auto"`` loads in; ``None`` where the config names none."""
    values = inspection.checkpoint.config_values
    named = values.get("dtype") or values.get("torch_dtype")
    return _DTYPES.get(str(named).removeprefix("torch."))


def _refusals(inspection: Inspection) -> Iterator[Refusal]:
    family, declared = inspection.family, inspection.config.declared
    if family.model_type in release_tables.names(RELEASE, "refuses true flag") and any(
        one.value is True for one in declared
    ):
        yield Refusal(Cause.CONFIG, f"the config of {shown(family.model_type)} refuses {FLAG} true")
    if cannot_build(inspection):
        sentence = f"{_whole(family)} cannot be built with {FLAG} true: its embedding has another name"
        yield Refusal(Cause.CONFIG, sentence)
    odd = None if family.misfit else misshapen(inspection)
    if odd is not None:
        yield Refusal(Cause.SHAPES, f"{shown(odd)} has another shape than the tensor that it is tied to", (odd,))


def _whole(family: Family) -> str:
    """The class and its text part."""
    part = shown(family.part.model_type) if family.part is not None else "its text part"
    return f"{shown(family.architecture)} with a {part} text part"
