"""Head and embedding of a graph are equal and hold a NaN.

## What it does
Reports an ONNX graph that stores a tied matrix twice, with at least one NaN in it. The copies are equal bit for bit,
except for a transpose or a cast.

## Why it matters
Every logit of that token is NaN, so the softmax over all tokens is NaN. A NaN in an embedding is a sign of a broken
training run or of a cast that overflowed.

## Example
A NaN in the embedding, and in the transposed copy for the head:

    error ONX004: model.embed_tokens.weight and onnx::MatMul_447 are one matrix,
    which holds a NaN. Every logit of that token is NaN.

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
    """Yield one finding for each pair of equal copies with a NaN."""
    for tie, member in graphs.heads(inspection):
        if member.relation.holds_nan:
            answer = graphs.answer(inspection, graphs.pair(tie, member))
            yield RULE.finding(
                f"{shown(tie.canonical)} and {shown(member.name)} are one matrix, which holds a NaN. "
                "Every logit of that token is NaN.",
                (tie.canonical, member.name),
                remedy=None if member.state is State.CAST else answer.remedy,
            )


RULE = Rule("ONX004", "nan-in-graph-head", Level.ERROR, __doc__ or "", find)
