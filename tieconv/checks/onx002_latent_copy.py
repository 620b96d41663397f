"""A session makes a second copy of a stored matrix.

## What it does
Reports initializers of 16,384 numbers and more that nodes of one ONNX graph read both as they are and through a
Transpose, a Cast or a Reshape (or through two different ones).

## Why it matters
Runtimes compute what depends on initializers alone when a session starts: the Transpose in front of a tied head
becomes a second matrix, on the CPU and on CUDA. The file looks shared, the session is not. Optimisers that write
the folded graph store both.

## Example
`Gather(W)` and `MatMul(x, Transpose(W))`, as torch and transformers export a tied model:

    warning ONX002: a session of ONNX Runtime 1.31.1 or 1.32.0 folds the
    Transpose of model.embed_tokens.weight and so holds the matrix once more:
    131 kB

## How to fix
`tieconv dedup` lets the head read the matrix as it lies, with `Gemm(transB=1)`. The Cast of a matrix stays: store it
in the type that the nodes compute in. So does the Reshape by which onnxruntime-genai shares an int4 matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.graph import RUNTIMES
from tieconv.checkpoint.graph_structure import Latent
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown, size


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each folded form beside another one."""
    for graph in inspection.checkpoint.graphs:
        for latent in graph.latent:
            if latent.extra and inspection.checkpoint.tensors[latent.name].elements >= graphs.LARGE:
                yield _report(inspection, latent)


def _report(inspection: Inspection, latent: Latent) -> Finding:
    turned = latent.operators == ("Transpose",)
    operators = " and the ".join(dict.fromkeys(latent.operators))
    return RULE.finding(
        f"a session of {RUNTIMES} folds the {operators} of {shown(latent.name)} and so holds the matrix once more: "
        f"{size(latent.nbytes)}",
        (latent.name,),
        remedy=graphs.answer(inspection, {latent.name: False}).remedy if turned else None,
    )


RULE = Rule("ONX002", "latent-copy", Level.WARNING, __doc__ or "", find)
