"""Head and embedding of a graph are equal and hold a NaN.

## What it does
Reports an ONNX graph that stores a tied matrix twice, equal bit for bit up to a transpose or a cast, with at least one
NaN in it.

## Why it matters
Every logit of that token is NaN, and with it the softmax over all of them. A NaN in an embedding is a sign of a broken
run or of a cast that overflowed.

## Example
A NaN in the embedding, and in the transposed copy for the head:

    error ONX004: model.embed_tokens.weight and onnx::MatMul_447 are one matrix,
    and it holds a NaN: every logit of that token is NaN

## How to fix
Find the row in the checkpoint that the graph was exported from. `tieconv dedup` stores the matrix once, NaN included.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each pair of equal copies with a NaN."""
    for tie, member in graphs.heads(inspection):
        if member.relation.holds_nan:
            answer = graphs.answer(inspection, graphs.pair(tie, member))
            yield RULE.finding(
                f"{shown(tie.canonical)} and {shown(member.name)} are one matrix, and it holds a NaN: every logit of "
                "that token is NaN",
                (tie.canonical, member.name),
                remedy=None if member.state is State.CAST else answer.remedy,
            )


RULE = Rule("ONX004", "nan-in-graph-head", Level.ERROR, __doc__ or "", find)
