"""A session makes a second copy of a stored matrix.

## What it does
Reports initializers of at least 16,384 elements that a graph reads in two forms. One form is the stored matrix, or the
output of a Transpose, Cast or Reshape. The other form is the output of another such node.

## Why it matters
When a session starts, the runtime computes all nodes that depend only on initializers (constant folding). So the
Transpose in front of a tied head becomes a second matrix, on the CPU and on CUDA. The file shares the matrix, but the
session does not. Optimizers that write the folded graph store both.

## Example
`Gather(W)` and `MatMul(x, Transpose(W))`, as torch and transformers export a tied model:

    warning ONX002: ONNX Runtime 1.31.1 or 1.32.0 folds the Transpose of
    model.embed_tokens.weight. So each session holds a second copy of 131 kB.

## How to fix
`tieconv dedup` lets the head read the stored matrix, with `Gemm(transB=1)`. It does not change a Cast: store the matrix
in the type that the nodes compute in. In an int4 graph of onnxruntime-genai, it replaces the Reshape by a lookup of the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.graph_structure import Latent
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan.graph import RUNTIMES
from tieconv.checks import graph_evidence as graphs
from tieconv.checks.interface import Rule
from tieconv.text import shown, size


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each folded form beside another form."""
    for graph in inspection.checkpoint.graphs:
        for latent in graph.latent:
            if latent.extra and inspection.checkpoint.tensors[latent.name].elements >= graphs.LARGE:
                yield _report(inspection, latent)


def _report(inspection: Inspection, latent: Latent) -> Finding:
    codes = {read.name for graph in inspection.checkpoint.graphs for read in graph.quantised if read.parts}
    shareable = latent.operators == ("Transpose",) or (latent.operators == ("Reshape",) and latent.name in codes)
    operators = " and the ".join(dict.fromkeys(latent.operators))
    return RULE.finding(
        f"{RUNTIMES} folds the {operators} of {shown(latent.name)}. "
        f"So each session holds a second copy of {size(latent.nbytes)}.",
        (latent.name,),
        remedy=graphs.answer(inspection, {latent.name: False}).remedy if shareable else None,
    )


RULE = Rule("ONX002", "latent-copy", Level.WARNING, __doc__ or "", find)
