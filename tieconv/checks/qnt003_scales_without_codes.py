"""A quantised embedding or head has scales without codes.

## What it does
Looks for scales and zero points under the names of the embedding and the head. They need codes beside them.

## Why it matters
The matrix is missing, although some of its parts are there. Loaders fail, or they fill the matrix with random values.
One cause is a tool that dropped the codes of a tied head but kept its scales.

## Example
A head whose codes were dropped to tie it again:

    error QNT003: lm_head.weight_scale is stored without codes. The output head
    has no values.

## How to fix
If the model is tied, remove the scales too. Else restore the codes from the original files, or quantise again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import FaultKind
from tieconv.checks import evidence, quantised_faults
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for each matrix that has only scales."""
    for matrix, fault in quantised_faults.first_faults(inspection, FaultKind.NO_CODES):
        names = fault.tensors[: evidence.LISTED]
        yield RULE.finding(
            f"{evidence.clause(names, 'is', 'are')} stored without codes. The {quantised_faults.noun(matrix)} has no "
            "values.",
            names,
            level=evidence.certain(inspection, Level.ERROR),
        )


RULE = Rule("QNT003", "scales-without-codes", Level.ERROR, __doc__ or "", find)
