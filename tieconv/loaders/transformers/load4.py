"""Predict transformers 4: it ties by the flag alone, under the embedding's name, whatever is stored.

From `tie_weights` and `_load_pretrained_model` of transformers 4.48.3 and 4.57.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tieconv.architectures.effective_flag import reading_v4
from tieconv.checkpoint.family import Role, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Member
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import head_pair, in_file
from tieconv.loaders.evidence.tie_groups import (
    Group,
    before_ties,
    discarded,
    file_names,
    groups,
    head_factor,
    misshapen,
)
from tieconv.loaders.evidence.unclear import SAFETENSORS
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.loaded import Absence, Cause, Loaded, Parameter, Refusal, unknown
from tieconv.loaders.transformers.copies4 import as_copied, copies_in_place
from tieconv.loaders.transformers.names4 import corrupt, unread
from tieconv.loaders.transformers.ties4 import NO_VALUES, last_wins, source_name, sources
from tieconv.loaders.transformers.unclear4 import ties_alone, unclear_model, unclear_tables, unclear_vocabularies
from tieconv.loaders.transformers.weight_search import by_name
from tieconv.text import shown

_EQUAL = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})


def load(inspection: Inspection, version: str) -> Loaded:
    """Return the model in transformers ``version``, `4.48` or `4.57`."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    unknown_names = unread(family, stored, version) | _unindexed(inspection)
    read = without_tensors(inspection, unknown_names)
    parameters = before_ties(read, f"transformers-{version}")
    open_pairs = [_tie(read, group, parameters, version) for group in groups(read)]
    head, embedding = (in_file(read, name) if name else "" for name in (family.output_head, family.input_embedding))
    if ties_alone(read, version):
        source = parameters[embedding]
        absence = None if source.stored else Absence.UNSET
        parameters |= {name: Parameter(source.stored, embedding, absence) for name in (head, embedding)}
    if head in parameters:
        factor = head_factor(read, family.meaning_v4, bool(family.default_v4))
        parameters[head] = replace(parameters[head], factor=factor)
    return Loaded(
        f"transformers {version}",
        file_names(read),
        parameters,
        unread=unknown_names,
        discarded=discarded(read, parameters, unknown_names),
        refusals=tuple(_refusals(inspection, read, version)),
        in_order=_in_order(read, version),
        undecided=next(filter(None, open_pairs), None),
    )


def _unindexed(inspection: Inspection) -> frozenset[str]:
    """Return the tensors in shards that the index does not list. transformers 4 does not read them."""
    cautions = (caution for caution in inspection.checkpoint.cautions if caution.code == "index.extra-tensor")
    return frozenset(name for caution in cautions for name in caution.tensors)


def _tie(
    inspection: Inspection, group: Group, parameters: dict[str, Parameter], version: str
) -> tuple[str, str] | None:
    """Set the values of one group's names. Return a stored pair that becomes one parameter and was not compared."""
    if group.role is Role.OUTPUT_BIAS:
        _tie_biases(inspection, group, parameters, version)
        return None
    members, undecided = group.members, None
    stored = [member.stored for member in members]
    last_table = last_read(inspection, group.names, [member.name for member in members])
    tied = is_tied(inspection, group)
    taken = sources(inspection.family, group.names, stored, version, tied=tied, last_table=last_table)
    source = members[group.names.index(source_name(inspection.family, group.names, version))].name
    if tied and version == "4.48":
        taken = as_copied(inspection, group.names, members, taken, source)
    for own, (member, index) in enumerate(zip(members, taken, strict=True)):
        if index is None or index == NO_VALUES:
            random = Parameter(None, member.name, Absence.RANDOM)
            parameters[member.name] = random if index is None else Parameter(None, source, Absence.UNSET)
            continue
        base = members[index]
        parameters[member.name] = Parameter(base.name, base.name)
        if index != own or len(set(taken)) < len(taken):
            undecided = undecided or _not_compared(base, member)
    return undecided if group.role is Role.WORD_EMBEDDING else None


def _not_compared(base: Member, member: Member) -> tuple[str, str] | None:
    if State.UNREAD not in (base.state, member.state):
        return None
    return (base.name, member.name) if member.state is State.UNREAD else (member.name, base.name)


def is_tied(inspection: Inspection, group: Group) -> bool:
    """Return whether a group is tied. For the head, the flag decides in every class."""
    family, flag = inspection.family, reading_v4(inspection)
    if flag is None or family.tying is Tying.NEVER:
        return group.declared
    return flag if family.output_head in group.names else flag or not group.gated


def last_read(inspection: Inspection, known_names: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the index of the stored table, not of the head, that is last in the files.

    ``known_names`` are the names of the same tensors in the architecture table.
    """
    order = {name: index for index, name in enumerate(inspection.checkpoint.tensors)}
    head = inspection.family.output_head
    stored = [index for index, name in enumerate(names) if name in order and known_names[index] != head]
    return max(stored, key=lambda index: order[names[index]], default=None)


def _in_order(inspection: Inspection, version: str) -> tuple[str, ...]:
    """Return the stored tables, not all equal, if the last one that is read stays."""
    head = inspection.head.output_head
    for tie in inspection.ties if last_wins(inspection.family, version) else ():
        stored = [member for member in tie.stored_members if head is None or member.name != head.name]
        if tie.role is Role.WORD_EMBEDDING and any(member.state not in _EQUAL for member in stored):
            return tuple(member.name for member in stored) if len(stored) > 1 else ()
    return ()


def _tie_biases(inspection: Inspection, group: Group, parameters: dict[str, Parameter], version: str) -> None:
    """Give both names of the head bias the values that reach the logits.

    Release 4.48 sets the whole head module to zero if one of its names counts as missing. With a missing embedding it
    does not. Measured with torch 2.13.
    """
    outer, inner = group.members[0], group.members[-1]
    prefers_inner = inspection.family.text_type in release_tables.names(f"transformers-{version}", "inner bias")
    pair = head_pair(inspection)
    if version == "4.48" and (pair is None or not pair.has_embedding):
        order: tuple[Member, ...] = (inner, outer)
    elif version == "4.48":
        order = (inner,) if prefers_inner else (outer,)
    else:
        order = (inner, outer) if prefers_inner else (outer,)
    used = next((member for member in order if member.stored), None)
    left = version == "4.57" and any(member.stored for member in group.members)
    for member in group.members:
        if used is not None:
            parameters[member.name] = Parameter(used.name, used.name)
        else:
            absence = Absence.UNSET if left else parameters[member.name].absence or Absence.ZERO
            parameters[member.name] = Parameter(None, outer.name, absence)


def _refusals(inspection: Inspection, read: Inspection, version: str) -> Iterator[Refusal]:
    """Yield why the release fails, in its order. ``read`` is the inspection without the names that it does not know."""
    files = by_name(read, configured=version != "4.48")
    if files is not None:
        yield files
    yield from _metadata(inspection)
    yield from unclear_model(read, version)
    yield from _corrupt_names(inspection, version)
    yield from unclear_vocabularies(read)
    yield from _config_and_shapes(inspection, read, version)
    yield from unclear_tables(read, version)
    if version == "4.48" and copies_in_place(read) is None and reading_v4(read):
        yield from _unclear_dtypes(read)


def _unclear_dtypes(inspection: Inspection) -> Iterator[Refusal]:
    """Yield the refusal of a copy that is rounded, if the copy that stays is unknown."""
    members = [member for tie in inspection.ties for member in tie.stored_members]
    copy = next((member for member in members if member.state is State.CAST), None)
    if copy is not None:
        sentence = f"{shown(copy.name)} is a rounded copy, and tieconv has no measurement of which copy 4.48 uses"
        yield unknown(sentence)


def _metadata(inspection: Inspection) -> Iterator[Refusal]:
    for file in inspection.checkpoint.files if inspection.checkpoint.format == SAFETENSORS else ():
        if file.refused_format is not None:
            entry = f"the format {shown(file.refused_format)}" if file.refused_format else 'no "format" entry'
            sentence = f"transformers 4 cannot load {shown(file.name)}: its metadata has {entry}"
            yield Refusal(Cause.METADATA, sentence)


def _corrupt_names(inspection: Inspection, version: str) -> Iterator[Refusal]:
    family = inspection.family
    name = corrupt(family, inspection.checkpoint.tensors, version)
    if name is not None:
        stored = f"it has {shown(name)}, and none of its names starts with {shown(f'{family.prefix}.')}"
        yield Refusal(Cause.NAMES, f"transformers 4 treats the file as corrupted: {stored}", (name,))


def _config_and_shapes(inspection: Inspection, read: Inspection, version: str) -> Iterator[Refusal]:
    family = inspection.family
    nested = "text_config" in inspection.checkpoint.config_values
    if nested and family.model_type in release_tables.names(f"transformers-{version}", "flat config"):
        sentence = f"the {shown(family.model_type)} config of transformers {version} has no text_config"
        yield Refusal(Cause.CONFIG, sentence)
    misfit = None if family.misfit and not reading_v4(inspection) else misshapen(read)
    if misfit is not None:
        sentence = f"{shown(misfit)} and the tensor that it is tied to have different shapes"
        yield Refusal(Cause.SHAPES, sentence, (misfit,))
