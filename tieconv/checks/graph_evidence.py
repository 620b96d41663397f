"""Questions that the rules about ONNX graphs ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.finding import Action, Remedy
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import Cast, Transposed
from tieconv.checkpoint.tie_group import Duplicate, Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checks.graph_sharing import shared

LARGE = 16 * MIN_ELEMENTS
"""Numbers from which a copy outside the head is worth a finding, in every type."""

_EQUAL = frozenset({State.IDENTICAL, State.TRANSPOSED})


def heads(inspection: Inspection) -> Iterator[tuple[Tie, Member]]:
    """Each tied pair of a graph that is two initializers."""
    for tie in inspection.ties if inspection.checkpoint.graphs else ():
        for member in tie.members[1:]:
            yield tie, member


def is_copy(member: Member) -> bool:
    """Whether a head holds just what the embedding holds: byte for byte, transposed, or cast without a loss."""
    return member.state in _EQUAL or (isinstance(member.relation, Cast) and member.relation.lossless)


@record
class Answer:
    """What `tieconv dedup` does about copies: the command, or why it keeps them."""

    remedy: Remedy | None
    why: str = ""

    @property
    def message_end(self) -> str:
        """The end of the finding's message."""
        return f"; dedup keeps both: {self.why}" if self.why else ""


def pair(tie: Tie, member: Member) -> dict[str, bool]:
    """The embedding and the head, and whether each is stored the other way round than the embedding."""
    relation = member.relation
    turned = isinstance(relation, Transposed) or (isinstance(relation, Cast) and relation.transposed)
    return {tie.canonical: False, member.name: turned}


def group(inspection: Inspection, copies: Duplicate) -> dict[str, bool]:
    """The copies of one matrix, and whether each is stored the other way round than the first."""
    first, *rest = copies.tensors
    shape = inspection.checkpoint.tensors[first].shape
    turned = {name: inspection.checkpoint.tensors[name].shape != shape for name in rest}
    square = copies.kind is State.TRANSPOSED and len(set(shape)) == 1
    return {first: False, **{name: turned[name] or square for name in rest}}


def answer(inspection: Inspection, copies: Mapping[str, bool]) -> Answer:
    """`tieconv dedup`, where it stores the copies once and keeps what the graph computes.

    Copies with a NaN are found while there are two: `check --fix` must not store them once and so end the finding.
    """
    first = next(iter(copies))
    graph = next(graph for graph in inspection.checkpoint.graphs if first in graph.names)
    outcome = shared(inspection.checkpoint.tensors, graph, copies)
    if outcome.why:
        return Answer(None, outcome.why)
    if outcome.rounds:
        action = Action("dedup", inspection.checkpoint.source, (("--head-form", "gemm"),))
        return Answer(Remedy(action.command, False))
    action = Action("dedup", inspection.checkpoint.source)
    hides = any(member.relation.holds_nan for _, member in heads(inspection))
    return Answer(Remedy(action.command, True, None if hides else action))
