"""Reduce an inspection to the stored names that a loader knows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tieconv.architectures import locate, spelled
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.interface import Absent, Canonical
from tieconv.checkpoint.relation.proved import Unread
from tieconv.checkpoint.tie_group import BiasState, Head, Member, OutputBias, Tie
from tieconv.loaders.evidence.head_pair import same


def without_tensors(inspection: Inspection, unread: Collection[str]) -> Inspection:
    """Return ``inspection`` without the tensors named in ``unread``."""
    if not unread:
        return inspection
    files = tuple(
        replace(file, tensors=tuple(tensor for tensor in file.tensors if tensor.name not in unread))
        for file in inspection.checkpoint.files
    )
    checkpoint = replace(inspection.checkpoint, files=files)
    ties = (_tie(tie, unread, inspection.family, checkpoint.tensors) for tie in inspection.ties)
    return replace(
        inspection,
        checkpoint=checkpoint,
        head=_head(inspection.head, unread),
        ties=tuple(tie for tie in ties if tie.stored_members),
    )


def _head(head: Head, unread: Collection[str]) -> Head:
    bias, table, embedding = head.output_bias, head.output_head, head.input_embedding
    if bias is not None and bias.name in unread:
        head = replace(head, output_bias=OutputBias(bias.name, BiasState.ABSENT))
    if table is not None and table.name in unread:
        head = replace(head, output_head=replace(table, stored=False))
    return replace(head, input_embedding=None) if embedding is not None and embedding.name in unread else head


def _tie(tie: Tie, unread: Collection[str], family: Family, stored: Collection[str]) -> Tie:
    members = tuple(_member(member, family, stored) if member.name in unread else member for member in tie.members)
    canonical = members[next(index for index, member in enumerate(tie.members) if member.name == tie.canonical)]
    return replace(
        tie,
        members=_referred(members),
        canonical=canonical.name,
        canonical_stored=tie.canonical_stored and canonical.stored,
    )


def _member(member: Member, family: Family, stored: Collection[str]) -> Member:
    """Return the absent member under its name in the table, by which the loader misses it."""
    by_memory = {memory: name for name, memory in family.renames}
    names = _names(family)
    name = member.loads_as if member.loads_as in names else by_memory.get(member.name, member.name)
    if name not in names:
        name = next((known for known in names if locate(family, known, (name,)) is not None), name)
    return Member(spelled(family, name, stored), False, Absent())


def _names(family: Family) -> list[str]:
    return [name for group in family.groups for name in (group.canonical, *group.members)]


def _referred(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return the members with a new reference, the first stored one. Only relations to equal members stay known."""
    stored = [index for index, member in enumerate(members) if member.stored]
    if not stored or any(members[index].state is State.CANONICAL for index in stored):
        return members
    first = stored[0]
    equal = same(members[first])
    referred = list(members)
    referred[first] = replace(members[first], relation=Canonical())
    for index in stored[1:]:
        if not (equal and same(members[index])):
            referred[index] = replace(members[index], relation=Unread())
    return tuple(referred)
