"""Facts of an inspection that the rules about ONNX graphs need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.finding import Action, Remedy
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import Cast, Transposed
from tieconv.checkpoint.tie_group import Duplicate, Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checks.graph_sharing import shared

LARGE = 16 * MIN_ELEMENTS
"""The fewest elements of a copy outside the head that a finding reports, in every type."""

_EQUAL = frozenset({State.IDENTICAL, State.TRANSPOSED})


def heads(inspection: Inspection) -> Iterator[tuple[Tie, Member]]:
    """Yield each tied pair of a graph that is stored as two initializers."""
    for tie in inspection.ties if inspection.checkpoint.graphs else ():
        for member in tie.members[1:]:
            yield tie, member


def is_copy(member: Member) -> bool:
    """Return whether a head holds the values of the embedding: byte-identical, transposed, or cast without loss."""
    return member.state in _EQUAL or (isinstance(member.relation, Cast) and member.relation.lossless)


@record
class Answer:
    """The `tieconv dedup` command for copies, or the reason why it keeps them, or some of them."""

    remedy: Remedy | None
    why: str = ""
    rest: str = ""

    @property
    def message_end(self) -> str:
        """The last sentence of the finding's message; empty if `dedup` removes the copies."""
        if self.rest:
            return f" dedup keeps some of them because {self.rest}."
        return f" dedup keeps them because {self.why}." if self.why else ""


def pair(tie: Tie, member: Member) -> dict[str, bool]:
    """Map the embedding and the head to whether each is stored transposed relative to the embedding."""
    relation = member.relation
    turned = isinstance(relation, Transposed) or (isinstance(relation, Cast) and relation.transposed)
    return {tie.canonical: False, member.name: turned}


def group(inspection: Inspection, copies: Duplicate) -> dict[str, bool]:
    """Map the copies of one matrix to whether each is stored transposed relative to the first."""
    first, *rest = copies.tensors
    shape = inspection.checkpoint.tensors[first].shape
    turned = {name: inspection.checkpoint.tensors[name].shape != shape for name in rest}
    square = copies.kind is State.TRANSPOSED and len(set(shape)) == 1
    return {first: False, **{name: turned[name] or square for name in rest}}


def answer(inspection: Inspection, copies: Mapping[str, bool]) -> Answer:
    """Return `tieconv dedup` if it stores the copies once and keeps the outputs of the graph, else why not.

    For copies with a NaN, `check --fix` gets no action: one copy would end the finding, but the NaN would stay.
    """
    first = next(iter(copies))
    graph = next(graph for graph in inspection.checkpoint.graphs if first in graph.names)
    outcome = shared(inspection.checkpoint.tensors, graph, copies)
    if outcome.why:
        return Answer(None, outcome.why)
    if outcome.rounds:
        action = Action("dedup", inspection.checkpoint.source, (("--head-form", "gemm"),))
        return Answer(Remedy(action.command, False), rest=outcome.rest)
    action = Action("dedup", inspection.checkpoint.source)
    hides = any(member.relation.holds_nan for _, member in heads(inspection))
    return Answer(Remedy(action.command, True, None if hides else action), rest=outcome.rest)
