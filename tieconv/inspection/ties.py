"""Compare the tied groups of the architecture with the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tieconv.architectures import locate, spelled
from tieconv.checkpoint.family import Family, TieGroup
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth, State
from tieconv.checkpoint.relation.interface import Absent, Canonical
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.inspection.blocks import is_sampled

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import ByteReader
    from tieconv.checkpoint.relation.proved import Relation

EQUAL = frozenset({State.ALIASED, State.IDENTICAL})
"""States of a member that a tied group may store."""


def survey(
    family: Family, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth, tied: bool
) -> tuple[Tie, ...]:
    """Return one `Tie` for each group of ``family`` with at least one stored name, or with a declared head.

    ``tied`` is what the config means for the groups that the flag decides.
    """
    ties = (_survey_one(family, group, tensors, reader, depth, tied) for group in family.groups)
    return tuple(tie for tie in ties if tie is not None)


def _survey_one(
    family: Family,
    group: TieGroup,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
    depth: Depth,
    tied: bool,
) -> Tie | None:
    located = {name: locate(family, name, tensors) for name in (group.canonical, *group.members)}
    stored = [actual for actual in located.values() if actual is not None]
    if not stored:
        return None
    reference = tensors[stored[0]]
    members = tuple(
        _member(family, name, actual, reference, tensors, reader, depth) for name, actual in located.items()
    )
    declared = tied if group.gated else True
    return Tie(
        role=group.role,
        canonical=located[group.canonical] or spelled(family, group.canonical, tensors),
        canonical_stored=located[group.canonical] is not None,
        declared=declared,
        consistent=consistent(members, declared),
        gated=group.gated,
        bytes_wasted=sum(tensors[member.name].nbytes for member in members if member.relation.repeats_bytes),
        members=members,
    )


def _member(
    family: Family,
    name: str,
    actual: str | None,
    reference: TensorRecord,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
    depth: Depth,
) -> Member:
    loads_as = dict(family.renames).get(name)
    if actual is None:
        return Member(spelled(family, name, tensors), False, Absent(), loads_as)
    if loads_as is None and actual != name:
        loads_as = name
    if loads_as == actual:
        loads_as = None
    relation = _relation(reference, tensors[actual], reader, depth)
    return Member(actual, True, relation, loads_as)


def _relation(reference: TensorRecord, tensor: TensorRecord, reader: ByteReader, depth: Depth) -> Relation:
    if tensor.name == reference.name:
        return Canonical()
    from tieconv.inspection.sharing import sharing  # a tied model compares nothing

    known = sharing(reference, tensor)
    if known is not None:
        return known
    if depth is Depth.HEADER:
        from tieconv.checkpoint.relation.proved import Unread  # an absent name has nothing to compare

        return Unread()
    if depth is Depth.CANDIDATES and is_sampled(reader):
        from tieconv.inspection.equality.sampled import relate_sampled

        return relate_sampled(reader, reference, tensor)
    from tieconv.inspection.equality.relation import relate  # a tied model compares nothing

    return relate(reader, reference, tensor)


def consistent(members: tuple[Member, ...], declared: bool) -> bool | None:
    """Return the entry of the state × declared table in the docs; ``None`` if a needed comparison was not made."""
    states = {member.state for member in members} - {State.CANONICAL}
    if not declared:
        return State.ABSENT not in states
    if states - EQUAL - {State.ABSENT, State.UNREAD}:
        return False
    return None if State.UNREAD in states else True
