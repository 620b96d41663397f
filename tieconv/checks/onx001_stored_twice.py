"""A graph stores one matrix twice.

## What it does
Reports initializers of one ONNX graph that hold the same matrix: byte for byte, transposed, or cast to another type
without a loss. The head and the embedding count from 1,024 numbers on, other matrices from 16,384 on, in every type.
Where the config declares the model untied the head is worth a note. At the default depth matrices with the embedding's
sides are compared; `--depth full` compares all.

## Why it matters
Exporters keep a tie only where both names are one object: a head that is a second parameter, or of a class that they
do not know, becomes a transposed copy, on disk and in every session. No optimiser merges it, for the bytes differ.

## Example
`Gather(W)` and `MatMul(x, Wᵀ)`, both stored:

    warning ONX001: onnx::MatMul_447 is model.embed_tokens.weight transposed:
    the graph stores and a session holds 12.3 kB too many

## How to fix
`tieconv dedup` stores the matrix once and rewrites the nodes that read it, in the form that keeps every bit; see
[ONNX graphs](onnx.md). Where `dedup` keeps both copies, the message says why and no command is offered.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.inspection import Duplicate, Inspection, Member, State, Tie
from tieconv.checks import evidence
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown, size

_WORDS = {State.IDENTICAL: "byte for byte", State.TRANSPOSED: "transposed", State.CAST: "cast without a loss"}
_SHOWN = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied pair, and one for all other copies of a graph; those with a NaN are ONX004's."""
    tensors = inspection.checkpoint.tensors
    for tie, member in graphs.heads(inspection):
        counts = tensors[tie.canonical].elements >= MIN_ELEMENTS
        if graphs.is_copy(member) and not member.relation.holds_nan and counts:
            yield _pair(inspection, tie, member)
    for graph in inspection.checkpoint.graphs:
        inside = (found for found in inspection.duplicates if set(found.tensors) <= set(graph.names))
        copies = [found for found in inside if _counts(found, inspection)]
        # What `dedup` keeps stays a finding after it; each finding has one answer.
        for why, some in _by_answer(inspection, copies).items():
            yield _others(inspection, some, why)


def _pair(inspection: Inspection, tie: Tie, member: Member) -> Finding:
    answer = graphs.answer(inspection, graphs.pair(tie, member))
    return RULE.finding(
        f"{shown(member.name)} is {shown(tie.canonical)} {_WORDS[member.state]}: the graph stores and a "
        f"session holds {size(tie.bytes_wasted)} too many{answer.told}",
        (tie.canonical, member.name),
        level=_level(inspection),
        remedy=answer.remedy,
    )


def _level(inspection: Inspection) -> Level:
    """An untied model with equal matrices may be about to be trained."""
    return Level.WARNING if inspection.config.effective or inspection.checkpoint.config is None else Level.NOTE


def _counts(found: Duplicate, inspection: Inspection) -> bool:
    """Whether the copies that need not be stored hold enough numbers together."""
    ranges = {inspection.checkpoint.tensors[name].range for name in found.tensors}
    numbers = (len(ranges) - 1) * inspection.checkpoint.tensors[found.tensors[0]].elements
    return found.kind in _WORDS and numbers >= graphs.LARGE


def _by_answer(inspection: Inspection, copies: list[Duplicate]) -> dict[graphs.Answer, list[Duplicate]]:
    """The copies by what `dedup` makes of them."""
    parts: dict[graphs.Answer, list[Duplicate]] = {}
    for found in copies:
        parts.setdefault(graphs.answer(inspection, graphs.group(inspection, found)), []).append(found)
    return parts


def _others(inspection: Inspection, copies: list[Duplicate], answer: graphs.Answer) -> Finding:
    copies = sorted(copies, key=lambda found: -found.bytes_wasted)
    listed = copies[:_SHOWN]
    groups = "; ".join(f"{evidence.listed(found.tensors)} ({_WORDS[found.kind]})" for found in listed)
    more = f"; and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
    wasted = sum(found.bytes_wasted for found in copies)
    return RULE.finding(
        f"one matrix under several names: {groups}{more}: the graph stores and a session holds {size(wasted)} too "
        f"many{answer.told}",
        dict.fromkeys(name for found in listed for name in found.tensors[: evidence.LISTED]),
        remedy=answer.remedy,
    )


RULE = Rule("ONX001", "graph-stores-twice", Level.WARNING, __doc__ or "", find)
