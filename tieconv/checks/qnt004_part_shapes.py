"""The parts of a quantised embedding or head do not fit together.

## What it does
Computes the shape of each part from the others: codes, scales, zero points, indexes of groups. It also compares the
unpacked matrix with the vocabulary and the hidden size in the config.

## Why it matters
Loaders refuse parts that do not fit. Some broadcast them or read beyond a group, and the logits are then noise. One
cause is a config from a run with another group size. Another is a vocabulary that was resized without its scales.

## Example
A head of GPTQ codes whose scales are of two groups:

    error QNT004: lm_head.scales is 2×8, but 8×4 codes in groups of 4 need 1×8.
    Loaders refuse the output head or read wrong values.

## How to fix
Take the parts and the config from one run of the quantiser, or quantise again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import FaultKind
from tieconv.checks import evidence, quantised_faults
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for the first part of each matrix that does not fit."""
    for matrix, fault in quantised_faults.first_faults(inspection, FaultKind.SHAPE):
        yield RULE.finding(
            f"{fault.reason}. Loaders refuse the {quantised_faults.noun(matrix)} or read wrong values.",
            fault.tensors,
            level=evidence.certain(inspection, Level.ERROR),
        )


RULE = Rule("QNT004", "part-shapes", Level.ERROR, __doc__ or "", find)
