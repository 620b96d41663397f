"""Predict transformers 5: it ties each declared pair in turn, depending on which of the two the file stores.

From `PreTrainedModel.tie_weights` of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.loaders.evidence.tie_groups import (
    Group,
    before_ties,
    discarded,
    file_names,
    groups,
    head_factor,
    misshapen,
)
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal
from tieconv.loaders.transformers.names5 import RELEASE, steps, unread
from tieconv.loaders.transformers.unclear5 import flag_refusals, remark, unclear_names
from tieconv.loaders.transformers.weight_search import by_name
from tieconv.text import shown

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_COARSER = {"F16": 1 << 13, "BF16": 1 << 16}
"""float32 steps in one step of a narrower type: copies with a larger difference stay different after rounding."""

Guesses = Mapping[tuple[str, str], bool]


class _UndecidedError(Exception):
    """The comparison does not decide whether two tensors are equal after loading."""


def load(inspection: Inspection) -> Loaded:
    """Return the model in transformers 5, with ``alternatives`` if stored tensors were not compared."""
    loaded = _load(inspection, {})
    return loaded if loaded.undecided is None else replace(loaded, alternatives=tuple(_settled(inspection, loaded, {})))


def _settled(inspection: Inspection, loaded: Loaded, guesses: Guesses) -> Iterator[Loaded]:
    """Yield the possible models: each pair that was not compared is assumed different, then equal."""
    if loaded.undecided is None:
        yield loaded
        return
    for equal in (False, True):
        settled = {**guesses, loaded.undecided: equal}
        yield from _settled(inspection, _load(inspection, settled), settled)


def _load(inspection: Inspection, guesses: Guesses) -> Loaded:
    """Return the model. ``guesses`` decides about pairs that were not compared; without a guess they differ."""
    unknown_names = unread(inspection.family, inspection.checkpoint.tensors)
    read = without_tensors(inspection, unknown_names)
    family, parameters = read.family, before_ties(read, RELEASE)
    open_pairs = [_tie(read, group, parameters, guesses) for group in groups(read)]
    pair = [in_file(read, name) for name in (family.output_head, family.input_embedding) if name]
    if family.output_head:
        factor = head_factor(read, family.meaning_v5, family.default_v5)
        parameters[pair[0]] = replace(parameters[pair[0]], factor=factor)
    return Loaded(
        "transformers 5",
        file_names(read),
        {name: parameters[name] for name in dict.fromkeys((*pair, *parameters))},
        unread=unknown_names,
        discarded=discarded(read, parameters, unknown_names),
        refusals=tuple(_refusals(inspection, read)),
        undecided=next(filter(None, open_pairs), None),
        remark=remark(read) if len({parameters[name].parameter for name in pair}) > 1 else "",
    )


def _tie(
    inspection: Inspection, group: Group, parameters: dict[str, Parameter], guesses: Guesses
) -> tuple[str, str] | None:
    """Tie the names of one group. Return the first stored pair that was not compared, or ``None``."""
    names = {name: member.name for name, member in zip(group.names, group.members, strict=True)}
    stored = [member.stored for member in group.members]
    undecided = None
    for give, take, both in steps(inspection.family, group.names, stored) if group.declared else ():
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


def _equal(inspection: Inspection, group: Group, first: str | None, second: str | None, guesses: Guesses) -> bool:
    members = {member.name: member for member in group.members}
    if first == second or first is None or second is None:
        return True
    if (first, second) in guesses:
        return guesses[first, second]
    try:
        return _compared(inspection, members[first], members[second])
    except _UndecidedError:
        raise _UndecidedError(first, second) from None


def _compared(inspection: Inspection, first: Member, second: Member) -> bool:
    if State.CANONICAL not in (first.state, second.state):
        equal = [_as_reference(inspection, member) for member in (first, second)]
        if not any(equal):
            raise _UndecidedError
        return all(equal)
    return _as_reference(inspection, second if first.state is State.CANONICAL else first)


def _as_reference(inspection: Inspection, member: Member) -> bool:
    """Return whether a stored member equals the group's reference by value, in the dtype of the loaded model."""
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
    """Return the dtype that ``dtype="auto"`` gives, or ``None`` if the config has none."""
    values = inspection.checkpoint.config_values
    named = values.get("dtype") or values.get("torch_dtype")
    return _DTYPES.get(str(named).removeprefix("torch."))


def _refusals(inspection: Inspection, read: Inspection) -> Iterator[Refusal]:
    """Yield why the release fails, in its order. ``read`` is the inspection without the names that it does not know."""
    files = by_name(inspection)
    if files is not None:
        yield files
    yield from config_refusals(inspection)
    yield from flag_refusals(inspection)
    yield from unclear_names(inspection)
    misfit = None if read.family.misfit else misshapen(read)
    if misfit is not None:
        yield Refusal(
            Cause.SHAPES, f"{shown(misfit)} and the tensor that it is tied to have different shapes", (misfit,)
        )


def config_refusals(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why transformers 5 does not build the class from the config."""
    family, declared = inspection.family, inspection.config.declared
    if family.model_type in release_tables.names(RELEASE, "refuses true flag") and any(
        entry.value is True for entry in declared
    ):
        yield Refusal(Cause.CONFIG, f"the {shown(family.model_type)} config of transformers 5 refuses {FLAG} true")
    if cannot_build(inspection):
        sentence = f"transformers 5 cannot build {_whole(family)} with {FLAG} true: its embedding has another name"
        yield Refusal(Cause.CONFIG, sentence)


def _whole(family: Family) -> str:
    """Return the class with its text part, in words."""
    part = shown(family.part.model_type) if family.part is not None else "its text part"
    return f"{shown(family.architecture)} with a {part} text part"
