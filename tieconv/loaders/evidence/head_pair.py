"""The embedding, the head and its bias in the files of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from tieconv.architectures import locate, spelled
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import BiasState, Member
from tieconv.checkpoint.value_type import record
from tieconv.text import shown


@record
class Pair:
    """The input embedding and the head, by their names in the file, and whether the file stores them.

    ``same`` says whether both stored tensors have the same values; ``None`` if they were not compared.
    """

    embedding: str
    head: str
    has_embedding: bool
    has_head: bool
    same: bool | None


def head_pair(inspection: Inspection) -> Pair | None:
    """Return the embedding and the head, or ``None`` if the table does not name both."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    if family.input_embedding is None or family.output_head is None:
        return None
    embedding, head = in_file(inspection, family.input_embedding), in_file(inspection, family.output_head)
    both = embedding in tensors and head in tensors
    equal = _same_values(inspection, embedding, head) if both else None
    return Pair(embedding, head, embedding in tensors, head in tensors, equal)


def in_file(inspection: Inspection, name: str) -> str:
    """Return the name that a tensor has, or would have, in the file."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    return locate(family, name, tensors) or spelled(family, name, tensors)


def _same_values(inspection: Inspection, embedding: str, head: str) -> bool | None:
    members = {member.name: member for tie in inspection.ties for member in tie.members}
    if embedding not in members or head not in members:
        return None
    first, second = members[embedding], members[head]
    if State.CANONICAL not in (first.state, second.state):
        return None
    return same(second if first.state is State.CANONICAL else first)


def same(member: Member) -> bool | None:
    """Return whether a stored member gives the same logits as its group's reference; ``None`` if unknown."""
    match member.state:
        case State.CANONICAL | State.ALIASED | State.IDENTICAL:
            return True
        case State.UNREAD | State.ABSENT | State.CAST:
            return None
        case State.TRANSPOSED | State.SCALED | State.NEAR | State.DISTINCT:
            return member.relation.sign_of_zero_only
        case _:
            assert_never(member.state)


def class_bias(inspection: Inspection) -> tuple[str, ...]:
    """Return the stored head bias unless it is all zero."""
    bias = inspection.head.output_bias
    if bias is None or bias.state in (BiasState.ABSENT, BiasState.ZERO):
        return ()
    return (bias.name,)


def stored_bias(inspection: Inspection) -> tuple[str, ...]:
    """Return the stored head bias, zero or not."""
    bias = inspection.head.output_bias
    return () if bias is None or bias.state is BiasState.ABSENT else (bias.name,)


def flags_agree(inspection: Inspection) -> bool | None:
    """Return the tie flag if every level of the config declares the same value, else ``None``."""
    values = [entry.value for entry in inspection.config.declared]
    for flag in (True, False):
        if values and all(value is flag for value in values):
            return flag
    return None


def listed(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``."""
    every = [shown(name) for name in names]
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))
