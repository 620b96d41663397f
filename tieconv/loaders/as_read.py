"""An inspection as a loader sees it that does not know some of the stored names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tieconv.architectures import spelled
from tieconv.checkpoint.family import Family, Role
from tieconv.checkpoint.inspection import BiasState, Head, Inspection, OutputBias, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.relation.interface import Absent, Canonical
from tieconv.checkpoint.relation.proved import Unread
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.loaders import questions as facts
from tieconv.loaders.interface import Verdict
from tieconv.loaders.questions import listed
from tieconv.loaders.tie_groups import groups


def as_read(inspection: Inspection, unread: Collection[str]) -> Inspection:
    """``inspection`` without the tensors named in ``unread``."""
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


def without(inspection: Inspection, loader: str, found: Verdict, lost: Collection[str]) -> Verdict:
    """``found`` with what becomes of the stored names in ``lost``, which the loader does not know."""
    if not lost or found.outcome in (Outcome.ERROR, Outcome.UNKNOWN):
        return found
    names = sorted(lost)
    dropped = tuple(name for name in names if name in facts.class_bias(inspection))
    told = f"{listed(names)} {'is a name' if len(names) == 1 else 'are names'} that {loader} does not know"
    values = [member for group in groups(inspection) if group.role is not Role.OUTPUT_BIAS for member in group.members]
    others = [member for member in values if member.name in lost and not facts.same(member)]
    alone = {inspection.family.input_embedding, inspection.family.output_head} - {member.name for member in values}
    loses = bool(others) or any(facts.in_file(inspection, name) in lost for name in alone if name)
    outcome = Outcome.DISCARDED if loses and found.outcome is not Outcome.RANDOM else found.outcome
    return Verdict(outcome, f"{found.detail}; {told}", (*found.tensors, *names), (*found.dropped, *dropped))


def _head(head: Head, unread: Collection[str]) -> Head:
    bias = head.output_bias
    if bias is None or bias.name not in unread:
        return head
    return replace(head, output_bias=OutputBias(bias.name, BiasState.ABSENT))


def _tie(tie: Tie, unread: Collection[str], family: Family, stored: Collection[str]) -> Tie:
    members = tuple(_member(member, family, stored) if member.name in unread else member for member in tie.members)
    canonical = members[next(place for place, member in enumerate(tie.members) if member.name == tie.canonical)]
    return replace(
        tie,
        members=_referred(members),
        canonical=canonical.name,
        canonical_stored=tie.canonical_stored and canonical.stored,
    )


def _member(member: Member, family: Family, stored: Collection[str]) -> Member:
    """The name as the loader misses it: the one of the table."""
    told = {memory: name for name, memory in family.renames}
    name = member.loads_as if member.loads_as in _names(family) else told.get(member.name, member.name)
    return Member(spelled(family, name, stored), False, Absent())


def _names(family: Family) -> frozenset[str]:
    return frozenset(name for group in family.groups for name in (group.canonical, *group.members))


def _referred(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members with a reference among them again: the first stored one, to which only equal ones are known."""
    stored = [place for place, member in enumerate(members) if member.stored]
    if not stored or any(members[place].state is State.CANONICAL for place in stored):
        return members
    first = stored[0]
    equal = facts.same(members[first])
    found = list(members)
    found[first] = replace(members[first], relation=Canonical())
    for place in stored[1:]:
        if not (equal and facts.same(members[place])):
            found[place] = replace(members[place], relation=Unread())
    return tuple(found)
