"""A graph stores one matrix twice.

## What it does
Reports initializers of one ONNX graph that hold the same matrix: byte for byte, transposed, or cast to another type
without a loss. The head and the embedding count from 4096 bytes on, other matrices from 64 KiB on. Where the
config declares the model untied the head is worth a note. At the default depth matrices with the embedding's sides are
compared; `--depth full` compares all.

## Why it matters
Exporters keep a tie only where both names are one object: a head that is a second parameter, or of a class that they
do not know, becomes a transposed copy, on disk and in every session. No optimiser merges it, for the bytes differ.

## Example
`Gather(W)` and `MatMul(x, Wᵀ)`, both stored:

    warning ONX001: onnx::MatMul_447 is model.embed_tokens.weight transposed: the graph stores and a session
    holds 12.3 kB too many

## How to fix
`tieconv dedup` stores the matrix once and rewrites the nodes that read it; see [ONNX graphs](onnx.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Duplicate, Inspection, State
from tieconv.checks import evidence, graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown, size

_WORDS = {State.IDENTICAL: "byte for byte", State.TRANSPOSED: "transposed", State.CAST: "cast without a loss"}
_SHOWN = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied pair, and one for all other copies of a graph; those with a NaN are ONX004's."""
    tensors = inspection.checkpoint.tensors
    for tie, member in graphs.heads(inspection):
        least = min(tensors[member.name].nbytes, tensors[tie.canonical].nbytes)
        if graphs.is_copy(member) and not member.detail.get("nan") and least >= graphs.PAGE:
            yield RULE.finding(
                f"{shown(member.name)} is {shown(tie.canonical)} {_WORDS[member.state]}: the graph stores and a "
                f"session holds {size(tie.bytes_wasted)} too many",
                (tie.canonical, member.name),
                level=_level(inspection),
                remedy=graphs.dedup(inspection),
            )
    for graph in inspection.checkpoint.graphs:
        copies = [found for found in inspection.duplicates if _counts(found) and set(found.tensors) <= set(graph.names)]
        if copies:
            yield _others(inspection, copies)


def _level(inspection: Inspection) -> Level:
    """An untied model with equal matrices may be about to be trained."""
    return Level.WARNING if inspection.config.effective or inspection.checkpoint.config is None else Level.NOTE


def _counts(found: Duplicate) -> bool:
    return found.kind in _WORDS and found.bytes_wasted >= graphs.LARGE


def _others(inspection: Inspection, copies: list[Duplicate]) -> Finding:
    copies = sorted(copies, key=lambda found: -found.bytes_wasted)
    listed = copies[:_SHOWN]
    groups = "; ".join(f"{evidence.listed(found.tensors)} ({_WORDS[found.kind]})" for found in listed)
    more = f"; and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
    wasted = sum(found.bytes_wasted for found in copies)
    return RULE.finding(
        f"one matrix under several names: {groups}{more}: the graph stores and a session holds {size(wasted)} too many",
        dict.fromkeys(name for found in listed for name in found.tensors[: evidence.LISTED]),
        remedy=graphs.dedup(inspection),
    )


RULE = Rule("ONX001", "graph-stores-twice", Level.WARNING, __doc__ or "", find)
