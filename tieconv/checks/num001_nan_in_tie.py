"""Tied copies that are equal hold a NaN.

## What it does
Reports two copies of a tied tensor that are equal byte for byte and contain at least one NaN.

## Why it matters
transformers 5 compares values before it ties, and a NaN equals nothing, not even itself: it leaves the
two apart with a warning, where transformers 4 ties them. Training or resizing from there gives two
tensors that were meant to be one. A NaN in an embedding is also a sign of a broken run.

## Example
`"tie_word_embeddings": true`, both names stored, one NaN in each:

    error NUM001: lm_head.weight repeats model.embed_tokens.weight byte for
    byte, and both hold a NaN: transformers 5 takes them for different and does
    not tie them

## How to fix
`tieconv retie` stores one copy, which every version ties. Then find out where the NaN comes from: the
row belongs to a token that no input may contain.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied group of equal copies with a NaN."""
    for tie in inspection.ties:
        copies = [member.name for member in tie.members if member.relation.holds_nan]
        if copies:
            canonical = evidence.reference(tie)
            yield RULE.finding(
                f"{evidence.clause(copies, 'repeats', 'repeat')} {evidence.listed([canonical])} "
                "byte for byte, and both hold a NaN: transformers 5 takes them for "
                "different and does not tie them",
                (canonical, *copies),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.merge(inspection, tie),
            )


RULE = Rule("NUM001", "nan-in-tie", Level.ERROR, __doc__ or "", find)
