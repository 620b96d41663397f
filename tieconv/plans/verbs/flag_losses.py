"""Find what a change of the tie flag alone loses: discarded heads, and heads that start random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.family import Role, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.tie_group import BiasState, Member, Tie
from tieconv.checkpoint.value_type import record
from tieconv.plans.build import ALIKE
from tieconv.plans.guards import again, inspect_hint
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checkpoint.quantised_matrix import QuantisedTables


@record
class Loss:
    """The ``tensors`` whose values setting the flag would lose, with the text of the refusal."""

    sentence: str
    hint: str
    code: str
    tensors: tuple[str, ...]


def losses(inspection: Inspection, tied: bool) -> list[Loss]:
    """Return what setting the flag to ``tied`` would lose; empty if nothing is lost."""
    tables = inspection.quantised_tables
    if tables is not None:
        return [*(_never(inspection) if tied else ()), *_quantised(inspection, tables, tied)]
    if tied:
        return [*_never(inspection), *(loss for tie in gated(inspection) for loss in _discarded(inspection, tie))]
    return [loss for tie in gated(inspection) for loss in _random(inspection, tie)] or _no_head(inspection)


def gated(inspection: Inspection) -> list[Tie]:
    """Return the groups that the flag decides, the word embedding first."""
    groups = [tie for tie in inspection.ties if tie.gated or tie.role is Role.WORD_EMBEDDING]
    return sorted(groups, key=lambda tie: tie.role is not Role.WORD_EMBEDDING)


def decided(inspection: Inspection, tie: Tie) -> list[Member]:
    """Return the members that the flag decides: all, or only the head if the class always shares the others."""
    head = inspection.head.output_head
    return [member for member in tie.members if tie.gated or (head is not None and member.name == head.name)]


def _never(inspection: Inspection) -> list[Loss]:
    if inspection.family.tying is not Tying.NEVER:
        return []
    label = inspection.family.architecture
    head = inspection.head.output_head
    sentence = f"{label} always has a separate head, so the flag cannot be true"
    return [Loss(sentence, again(inspection, "set-tie false"), "tie.never", (head.name,) if head else ())]


def _discarded(inspection: Inspection, tie: Tie) -> list[Loss]:
    canonical = tie.canonical
    if not tie.canonical_stored:
        return [
            Loss(
                f"{shown(canonical)} is not stored, and transformers 4 reads the tied values only from that name",
                f"restore this name: {again(inspection, 'retie')}",
                "set-tie.inverted",
                tuple(member.name for member in tie.members),
            )
        ]
    hint = f"set the flag to match the stored tensors: {again(inspection, 'set-tie false')}"
    if not inspection.config.effective:
        hint = f"the flag already matches the stored tensors; compare the two tables: {again(inspection, 'analyze')}"
    return [
        Loss(
            f"{shown(member.name)} is not {shown(canonical)} ({difference_clause(member)}): with the flag true, "
            "transformers 4 silently discards it and transformers 5 keeps it",
            hint,
            "set-tie.discards",
            (member.name,),
        )
        for member in decided(inspection, tie)
        if member.stored and member.state not in ALIKE
    ]


def _random(inspection: Inspection, tie: Tie) -> list[Loss]:
    return [
        Loss(
            f"{shown(member.name)} is not stored: with the flag false, it would start {_start(tie)}",
            f"store it: {again(inspection, 'untie')}",
            "set-tie.random",
            (member.name,),
        )
        for member in decided(inspection, tie)
        if _is_missing(inspection, tie, member)
    ]


def _start(tie: Tie) -> str:
    return "at zero" if tie.role is Role.OUTPUT_BIAS else "random"


def _is_missing(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether the name has no stored values; an all-zero bias is never missing, because it starts at zero."""
    bias = inspection.head.output_bias
    if tie.role is Role.OUTPUT_BIAS and bias is not None and bias.state is BiasState.ZERO:
        return False
    empty = member.relation.is_empty
    return (not member.stored or empty) and quantised_twin(member.name, inspection.checkpoint.tensors) is None


def _no_head(inspection: Inspection) -> list[Loss]:
    """Return the loss of a head whose group has no stored tensor."""
    head = inspection.head.output_head
    if head is None or head.stored or quantised_twin(head.name, inspection.checkpoint.tensors):
        return []
    if any(member.name == head.name for tie in inspection.ties for member in tie.members):
        return []
    sentence = f"{shown(head.name)} is not stored, and neither is a tensor that it could be tied to"
    return [Loss(sentence, inspect_hint(inspection), "set-tie.random", (head.name,))]


def _quantised(inspection: Inspection, tables: QuantisedTables, tied: bool) -> list[Loss]:
    """Return what the flag loses if the embedding or the head is stored in parts."""
    from tieconv.checkpoint.quantised_matrix import HEAD, PairState  # most models are not quantised
    from tieconv.plans.quantised.quantised_pair import float_table, head_name, separate_hint, unequal_clause

    name = head_name(inspection)
    for matrix in tables.matrices:
        for fault in matrix.faults[:1]:
            sentence = f"the quantised {shown(matrix.name)} is broken: {fault.reason}"
            return [Loss(sentence, inspect_hint(inspection), "quantised.broken", fault.tensors)]
    if tables.of(HEAD) is None and float_table(inspection, name) is None:
        sentence = f"{shown(name)} is not stored: with the flag false, it would start random"
        return [] if tied else [Loss(sentence, f"store it: {again(inspection, 'untie')}", "set-tie.random", (name,))]
    if not tied or (tables.relation is not None and tables.relation.state is PairState.EQUAL):
        return []
    sentence = (
        f"{shown(name)} is not a copy of the embedding ({unequal_clause(tables)}): with the flag true, loaders fail or "
        "lose a matrix"
    )
    return [Loss(sentence, separate_hint(inspection), "set-tie.discards", (name,))]
