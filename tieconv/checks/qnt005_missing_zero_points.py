"""A quantised embedding or head lacks the zero points that its config declares.

## What it does
Reports codes without zero points if the config says asymmetric (`"symmetric": false`, `"sym": false`,
`"zero_point": true`). For MLX, it reports codes without `biases` if the mode is affine.

## Why it matters
The zero point says which code means 0. Loaders fail without it, or they take the middle of the codes. Every value is
then moved by some steps.

## Example
A head of GPTQ codes with `"sym": false` and without `qzeros`:

    error QNT005: lm_head.qweight has no qzeros, but the config says
    asymmetric. The values of the output head are unknown.

## How to fix
Restore the zero points from the original files, or quantise again. If the codes are symmetric, correct the config.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import FaultKind
from tieconv.checks import evidence, quantised_faults
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for each matrix that lacks zero points."""
    for matrix, fault in quantised_faults.first_faults(inspection, FaultKind.NO_ZERO_POINTS):
        yield RULE.finding(
            f"{fault.reason}. The values of the {quantised_faults.noun(matrix)} are unknown.",
            fault.tensors,
            level=evidence.certain(inspection, Level.ERROR),
        )


RULE = Rule("QNT005", "missing-zero-points", Level.ERROR, __doc__ or "", find)
