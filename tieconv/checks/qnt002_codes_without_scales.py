"""A quantised embedding or head has codes without scales.

## What it does
Lists every scale that the scheme of the codes needs, and reports codes without one. It knows the schemes of
compressed-tensors, GPTQ, AWQ, bitsandbytes, FP8, torchao, quanto, HQQ and MLX.

## Why it matters
A code counts steps, and the scale is the size of a step. Loaders fail without it, or they fill the scales with ones or
with random numbers. The logits are then noise.

## Example
A head of GPTQ codes whose scales were lost in a merge of shards:

    error QNT002: lm_head.qweight has no scales. Without the scales the output
    head has no values.

## How to fix
Restore the scales from the original files, or quantise again. tieconv cannot compute the scales.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import FaultKind
from tieconv.checks import evidence, quantised_faults
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for each matrix that lacks scales."""
    for matrix, fault in quantised_faults.first_faults(inspection, FaultKind.NO_SCALES):
        yield RULE.finding(
            f"{fault.reason}. Without the scales the {quantised_faults.noun(matrix)} has no values.",
            fault.tensors,
            level=evidence.certain(inspection, Level.ERROR),
        )


RULE = Rule("QNT002", "codes-without-scales", Level.ERROR, __doc__ or "", find)
