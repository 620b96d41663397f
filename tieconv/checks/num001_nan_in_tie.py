"""Equal copies of a tied tensor hold a NaN.

## What it does
Reports two copies of a tied tensor that are byte-identical and contain at least one NaN.

## Why it matters
transformers 5 compares values before it ties. A NaN equals nothing, not even itself. So transformers 5 prints a warning
and leaves the two untied, but transformers 4 ties them. If training or a resize follows, the model has two tensors
instead of one. A NaN in an embedding is also a sign of a broken run.

## Example
`"tie_word_embeddings": true`, both names stored, one NaN in each:

    error NUM001: lm_head.weight is a byte-identical copy of
    model.embed_tokens.weight, and both hold a NaN. transformers 5 treats them
    as different and does not tie them.

## How to fix
`tieconv retie` stores one copy, which every version ties. Then find the cause of the NaN: the row belongs to a token
that no input may contain.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each tied group of equal copies with a NaN."""
    for tie in inspection.ties:
        copies = [member.name for member in tie.members if member.relation.holds_nan]
        if copies:
            canonical = evidence.reference(tie)
            yield RULE.finding(
                f"{evidence.are_copies(copies, canonical)}, and {evidence.verb(copies, 'both', 'all')} hold a NaN. "
                "transformers 5 treats them as different and does not tie them.",
                (canonical, *copies),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.merge(inspection, tie),
            )


RULE = Rule("NUM001", "nan-in-tie", Level.ERROR, __doc__ or "", find)
