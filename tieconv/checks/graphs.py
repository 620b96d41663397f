"""Questions that the rules about ONNX graphs ask."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Action, Remedy
from tieconv.checkpoint.inspection import Inspection, Member, State, Tie

PAGE = 4096
"""Bytes of a matrix from which `tieconv dedup` looks at it."""
LARGE = 64 * 1024
"""Bytes from which a copy outside the head is worth a finding."""

_EQUAL = frozenset({State.IDENTICAL, State.TRANSPOSED})


def heads(inspection: Inspection) -> Iterator[tuple[Tie, Member]]:
    """Each tied pair of a graph that is two initializers."""
    for tie in inspection.ties if inspection.checkpoint.graphs else ():
        for member in tie.members[1:]:
            yield tie, member


def is_copy(member: Member) -> bool:
    """Whether a head holds just what the embedding holds: byte for byte, transposed, or cast without a loss."""
    return member.state in _EQUAL or (member.state is State.CAST and member.detail.get("lossless") is True)


def dedup(inspection: Inspection) -> Remedy:
    """`tieconv dedup`, which keeps what the graph computes.

    Copies with a NaN are found while there are two: `check --fix` must not store them once and so end the finding.
    """
    action = Action("dedup", inspection.checkpoint.source)
    hides = any(member.detail.get("nan") for _, member in heads(inspection))
    return Remedy(action.command, True, None if hides else action)
