"""A graph stores one matrix twice.

## What it does
Reports initializers of one ONNX graph that hold the same matrix. Copies may be byte-identical, transposed, or cast to
another type without loss. It also reports initializers on one region of an external file: a session reads it for
each of them. The rule covers heads and embeddings from 1,024 elements, and other matrices from 16,384. If
the config declares the model untied, the level for the head is note. The default depth compares matrices with the
embedding's shape; `--depth full` compares all.

## Why it matters
Exporters keep a tie only if both names are one Python object. Otherwise the head becomes a transposed copy, on disk and
in every session. Optimizers do not merge it, because the bytes differ.

## Example
`Gather(W)` and `MatMul(x, Wᵀ)`, both stored:

    warning ONX001: onnx::MatMul_447 is a transposed copy of
    model.embed_tokens.weight. The copy wastes 12.3 kB on disk and in each
    session.

## How to fix
`tieconv dedup` stores the matrix once and rewrites the nodes that read it. The logits keep every bit; see [ONNX
graphs](onnx.md). If `dedup` keeps both copies, the message says why and there is no command.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Duplicate, Member, Tie
from tieconv.checks import evidence
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown, size

_WORDS = {
    State.IDENTICAL: "byte-identical",
    State.TRANSPOSED: "transposed",
    State.CAST: "lossless cast",
    State.ALIASED: "one region of the file",
}
_SHOWN = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each tied pair, and one for all other copies of a graph.

    Pairs with a NaN are reported by ONX004.
    """
    tensors = inspection.checkpoint.tensors
    for tie, member in graphs.heads(inspection):
        counts = tensors[tie.canonical].elements >= MIN_ELEMENTS
        if (graphs.is_copy(member) or member.state is State.ALIASED) and not member.relation.holds_nan and counts:
            yield _pair(inspection, tie, member)
    for graph in inspection.checkpoint.graphs:
        inside = (duplicate for duplicate in inspection.duplicates if set(duplicate.tensors) <= set(graph.names))
        copies = [duplicate for duplicate in inside if _counts(duplicate, inspection)]
        # A copy that `dedup` keeps is still a finding afterwards, so each finding has one answer.
        for why, some in _by_answer(inspection, copies).items():
            yield _others(inspection, some, why)


def _pair(inspection: Inspection, tie: Tie, member: Member) -> Finding:
    answer = graphs.answer(inspection, graphs.pair(tie, member))
    message = f"{shown(member.name)} is a {_WORDS[member.state]} copy of {shown(tie.canonical)}. "
    message += f"The copy wastes {size(tie.bytes_wasted)} on disk and in each session."
    if member.state is State.ALIASED:
        message = f"{shown(member.name)} and {shown(tie.canonical)} are one region of the file. "
        message += (
            f"Each session holds it twice, which wastes {size(inspection.checkpoint.tensors[member.name].nbytes)}."
        )
    return RULE.finding(
        f"{message}{answer.message_end}",
        (tie.canonical, member.name),
        level=_level(inspection),
        remedy=answer.remedy,
    )


def _level(inspection: Inspection) -> Level:
    """Return the level: an untied model with equal matrices may be trained next, so it gets a note."""
    return Level.WARNING if inspection.config.effective or inspection.checkpoint.config is None else Level.NOTE


def _counts(duplicate: Duplicate, inspection: Inspection) -> bool:
    """Return whether the removable copies hold enough elements together."""
    numbers = (len(duplicate.tensors) - 1) * inspection.checkpoint.tensors[duplicate.tensors[0]].elements
    return duplicate.kind in _WORDS and numbers >= graphs.LARGE


def _by_answer(inspection: Inspection, copies: list[Duplicate]) -> dict[graphs.Answer, list[Duplicate]]:
    """Return the copies grouped by what `dedup` does with them."""
    parts: dict[graphs.Answer, list[Duplicate]] = {}
    for duplicate in copies:
        parts.setdefault(graphs.answer(inspection, graphs.group(inspection, duplicate)), []).append(duplicate)
    return parts


def _others(inspection: Inspection, copies: list[Duplicate], answer: graphs.Answer) -> Finding:
    copies = sorted(copies, key=lambda duplicate: -duplicate.bytes_wasted)
    listed = copies[:_SHOWN]
    groups = "; ".join(f"{evidence.listed(duplicate.tensors)} ({_WORDS[duplicate.kind]})" for duplicate in listed)
    more = f"; and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
    tensors = inspection.checkpoint.tensors
    wasted = sum(duplicate.bytes_wasted for duplicate in copies)
    held = sum(min(tensors[n].nbytes for n in each.tensors) * (len(each.tensors) - 1) for each in copies)
    waste = f"{size(wasted)} on disk and " if wasted else ""
    waste += "in each session" if held == wasted else f"{size(held)} in each session"
    return RULE.finding(
        f"The graph stores a matrix under several names: {groups}{more}. The copies waste {waste}.{answer.message_end}",
        dict.fromkeys(name for duplicate in listed for name in duplicate.tensors[: evidence.LISTED]),
        remedy=answer.remedy,
    )


RULE = Rule("ONX001", "graph-stores-twice", Level.WARNING, __doc__ or "", find)
