"""Complete the states of tied names whose values were not read: local shards, and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import OtherBytes, Unread
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.live.live_tensors import LiveTensor

EQUAL_SHARDS = "the local shards are equal. tieconv did not gather the others"
_DIFFERENT_SHARDS = "the local shards differ"


def with_local_shards(evidence: Inspection, tensors: Mapping[str, LiveTensor]) -> Inspection:
    """Return the evidence with the reason of each unread name, and with the shards of this process compared.

    Different shards prove different tensors. Equal shards prove nothing about the others, so the name stays unread.
    ``tensors`` are by their names in the evidence.
    """
    ties = tuple(_completed(tie, tensors) for tie in evidence.ties)
    return evidence if ties == evidence.ties else replace(evidence, ties=ties)


def _completed(tie: Tie, tensors: Mapping[str, LiveTensor]) -> Tie:
    reference = next((member.name for member in tie.members if member.state is State.CANONICAL), "")
    members = tuple(_compared(member, reference, tensors) for member in tie.members)
    differs = any(isinstance(member.relation, OtherBytes) for member in members)
    return replace(tie, members=members, consistent=False if differs and tie.declared else tie.consistent)


def _compared(member: Member, reference: str, tensors: Mapping[str, LiveTensor]) -> Member:
    left, right = tensors.get(reference), tensors.get(member.name)
    if member.state is not State.UNREAD or left is None or right is None:
        return member
    reason = right.unread or left.unread
    if left.shard is not None and right.shard is not None:
        if not equal_values(left.shard, right.shard):
            return replace(member, relation=OtherBytes(reason=_DIFFERENT_SHARDS))
        reason = EQUAL_SHARDS
    return replace(member, relation=Unread(reason=reason)) if reason else member


def equal_values(left: Any, right: Any) -> bool:
    """Return whether two torch tensors have the same type, shape and bytes. They may be on two devices."""
    import torch

    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    rows = zip(left.reshape(-1).split(_ELEMENTS), right.reshape(-1).split(_ELEMENTS), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.to(a.device).view(torch.uint8)) for a, b in rows)


_ELEMENTS = 16 * 1024 * 1024
"""Elements compared at a time: a copy to another device takes no more memory."""
