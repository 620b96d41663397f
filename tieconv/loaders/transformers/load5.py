"""Predict transformers 5: it ties each declared pair in turn, depending on which of the two the file stores.

From `PreTrainedModel.tie_weights` of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.architectures.class_table import newer_release
from tieconv.architectures.effective_flag import FLAG, cannot_build
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.equal_in_dtype import equal_members
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
from tieconv.loaders.evidence.unclear import of_type
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal, stopped, unknown
from tieconv.loaders.transformers.names5 import RELEASE, steps, unread
from tieconv.loaders.transformers.unclear5 import flag_refusals, remark, unclear_names
from tieconv.loaders.transformers.weight_search import by_name
from tieconv.text import shown

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
RELEASE_50 = "transformers-5.0"

Guesses = Mapping[tuple[str, str], bool]


class _UndecidedError(Exception):
    """The comparison does not decide whether two tensors are equal after loading."""


def load(inspection: Inspection) -> Loaded:
    """Return the model in transformers 5, with ``alternatives`` if stored tensors were not compared."""
    loaded = _load(inspection, {}, compares=True)
    return loaded if loaded.undecided is None else replace(loaded, alternatives=tuple(_settled(inspection, loaded, {})))


def _settled(inspection: Inspection, loaded: Loaded, guesses: Guesses) -> Iterator[Loaded]:
    """Yield the possible models: each pair that was not compared is assumed different, then equal."""
    if loaded.undecided is None:
        yield loaded
        return
    for equal in (False, True):
        settled = {**guesses, loaded.undecided: equal}
        yield from _settled(inspection, _load(inspection, settled, compares=True), settled)


def load_50(inspection: Inspection) -> Loaded:
    """Return the model in transformers 5.0 to 5.3, which never tie two stored tensors and accept a flag of null."""
    if inspection.family.since:
        sentence = f"tieconv measured this class and model type only with transformers {inspection.family.since}"
        return stopped("transformers 5", unknown(sentence))
    if inspection.family.text_class in release_tables.names(RELEASE_50, "not loaded"):
        kind = shown(inspection.family.text_class)
        sentence = f"transformers 5.0 did not load the small model of {kind} in our tests"
        return stopped("transformers 5", unknown(sentence))
    flags = [_flag_at(inspection, level) for level in ("", *inspection.family.levels[:1])]
    if flags[0] != flags[-1]:
        sentence = "tieconv does not know which level of the flag transformers 5.0 reads"
        return stopped("transformers 5", unknown(sentence))
    return _load(inspection, {}, compares=False)


def _flag_at(inspection: Inspection, level: str) -> object:
    path = f"{level}.{FLAG}".lstrip(".")
    return next((entry.value for entry in inspection.config.declared if entry.path == path and entry.present), "absent")


def _leaves_untied(inspection: Inspection) -> bool:
    """Return whether transformers 5.0 reads no true flag: it is null, or absent where the class defaults to false."""
    declared = [entry for entry in inspection.config.declared if entry.present]
    untied = inspection.family.text_class in release_tables.names(RELEASE_50, "untied by default")
    return any(entry.value is None for entry in declared) or (untied and not declared)


def _load(inspection: Inspection, guesses: Guesses, *, compares: bool) -> Loaded:
    """Return the model. ``guesses`` decides about pairs that were not compared; without a guess they differ.

    ``compares`` says that the release compares two stored tensors of a tied group.
    """
    unknown_names = unread(inspection.family, inspection.checkpoint.tensors)
    read = without_tensors(inspection, unknown_names)
    family, parameters = read.family, before_ties(read, RELEASE)
    untied = not compares and _leaves_untied(read)
    tied = [group for group in groups(read) if group.declared and not (untied and group.gated)]
    open_pairs = [_tie(read, group, parameters, guesses, compares=compares) for group in tied]
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
        refusals=tuple(_refusals(inspection, read, compares=compares)),
        undecided=next(filter(None, open_pairs), None),
        remark=remark(read, compares=compares) if len({parameters[name].parameter for name in pair}) > 1 else "",
    )


def _tie(
    inspection: Inspection, group: Group, parameters: dict[str, Parameter], guesses: Guesses, *, compares: bool
) -> tuple[str, str] | None:
    """Tie the names of one group. Return the first stored pair that was not compared, or ``None``."""
    names = {name: member.name for name, member in zip(group.names, group.members, strict=True)}
    stored = [member.stored for member in group.members]
    undecided = None
    for give, take, both in steps(inspection.family, group.names, stored):
        source, target = parameters[names[give]], parameters[names[take]]
        if both:
            try:
                equal = compares and _equal(inspection, group, source.stored, target.stored, guesses)
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
    equal = equal_members(inspection, members[first], members[second], load_dtype(inspection))
    if equal is None:
        raise _UndecidedError(first, second)
    return equal


def load_dtype(inspection: Inspection) -> str | None:
    """Return the dtype that ``dtype="auto"`` gives, or ``None`` if the config has none."""
    values = inspection.checkpoint.config_values
    named = values.get("dtype") or values.get("torch_dtype")
    return _DTYPES.get(str(named).removeprefix("torch."))


def _refusals(inspection: Inspection, read: Inspection, *, compares: bool) -> Iterator[Refusal]:
    """Yield why the release fails, in its order. ``read`` is the inspection without the names that it does not know."""
    kind, config = inspection.config.model_type, inspection.checkpoint.config_values
    if kind and not inspection.family.trusted and kind not in newer_release()["known"] and "auto_map" not in config:
        release = newer_release()["transformers"]
        yield Refusal(Cause.CLASS, f"transformers {release} has no model {of_type(kind)}")
    files = by_name(inspection)
    if files is not None:
        yield files
    yield from config_refusals(inspection)
    yield from flag_refusals(inspection, null=compares)
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
