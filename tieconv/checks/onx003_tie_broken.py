"""The config ties a graph's head and embedding, and their values differ.

## What it does
Reports an ONNX graph whose head and embedding hold different values, although `config.json` declares the model tied.
The rule finds both from the nodes, not from their names. It transposes a transposed head before it compares.

## Why it matters
A tied model has one matrix, so one of the two is wrong. Perhaps the exporter read a head that training did not update.
Or one of them was changed later: quantized and dequantized, or pruned. The graph runs, but its logits are wrong.

## Example
`"tie_word_embeddings": true`, an embedding and another head:

    error ONX003: lm_head.weight differs from model.embed_tokens.weight (in 96
    of 96 rows, by at most 0.972). However, the config declares the model tied.

## How to fix
Export the graph again from the checkpoint, and compare the two: `tieconv parity`. If the head should differ from the
embedding, correct the config.
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
    """Yield one finding for each pair.

    A head that is a multiple of the embedding is a warning: it may include a factor of the logits.
    """
    for tie, member in graphs.heads(inspection):
        if member.state not in _UNEQUAL or inspection.checkpoint.config is None or not tie.declared:
            continue
        level = Level.WARNING if member.state is State.SCALED else evidence.certain(inspection, Level.ERROR)
        yield RULE.finding(
            f"{evidence.difference(member, tie.canonical)}. However, {evidence.says(inspection, True)}.",
            (tie.canonical, member.name),
            level=level,
        )


RULE = Rule("ONX003", "graph-tie-broken", Level.ERROR, __doc__ or "", find)
