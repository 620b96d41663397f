"""The config ties a graph's head and embedding, and their values differ.

## What it does
Reports an ONNX graph whose head and embedding hold different values, while the `config.json` beside it declares the
model tied. The two are found from the nodes, not by their names; a head stored transposed is compared turned round.

## Why it matters
A tied model has one matrix, so one of the two is not the model's: the export read a head that training had left
behind, or one of them was changed afterwards, quantised and restored, or pruned. The graph runs and gives other logits.

## Example
`"tie_word_embeddings": true`, an embedding and another head:

    error ONX003: lm_head.weight differs from model.embed_tokens.weight (in 96
    of 96 rows, by at most 0.972), but the config declares the model tied

## How to fix
Export the graph again from the checkpoint, and hold it against that: `tieconv parity`. Where the head is meant to be
one of its own, the config is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checks import evidence
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule

_UNEQUAL = frozenset({State.SCALED, State.NEAR, State.DISTINCT})


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each pair; a head that is a multiple may hold a factor of the logits, so it is a warning."""
    for tie, member in graphs.heads(inspection):
        if member.state not in _UNEQUAL or inspection.checkpoint.config is None or not tie.declared:
            continue
        level = Level.WARNING if member.state is State.SCALED else evidence.certain(inspection, Level.ERROR)
        yield RULE.finding(
            f"{evidence.difference(member, tie.canonical)}, but {evidence.says(inspection, True)}",
            (tie.canonical, member.name),
            level=level,
        )


RULE = Rule("ONX003", "graph-tie-broken", Level.ERROR, __doc__ or "", find)
