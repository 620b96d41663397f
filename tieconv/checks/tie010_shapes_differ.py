"""Tied tensors have different shapes.

## What it does
Reports a stored tensor of a tied group whose shape differs from the canonical tensor. It has more or fewer rows, or
rows and columns are swapped. In an untied model the rule reports only a head that is the transpose of the embedding.

## Why it matters
Loaders fail with a size mismatch. Rows differ if a tool padded one of the two for tensor parallelism, or resized one
for new tokens. Rows and columns are swapped by frameworks that store linear weights as `[in, out]`.

## Example
`"tie_word_embeddings": true`, and one row more in the head:

    error TIE010: lm_head.weight has the shape [9, 4], but
    model.embed_tokens.weight has [8, 4] (the first 8 rows are equal). The class
    needs one shape for both, so loaders refuse the model.

## How to fix
Use the tool that wrote the tensors. Pad or trim both tensors and the head bias to the vocabulary size of the config.
Transpose a swapped tensor. No command of tieconv does that.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import OtherShape
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each stored name with another shape."""
    tied = list(evidence.declared_tied(inspection))
    for tie in inspection.ties:
        for member in tie.members:
            wrong = tie in tied or member.state is State.TRANSPOSED
            wrong = wrong and not evidence.in_parts(inspection, tie, member)
            if wrong and tie.role is not Role.OUTPUT_BIAS and evidence.shapes_differ(inspection, tie, member):
                yield _report(inspection, tie, member)


def _report(inspection: Inspection, tie: Tie, member: Member) -> Finding:
    canonical = evidence.reference(tie)
    tensors = inspection.checkpoint.tensors
    return RULE.finding(
        f"{evidence.listed([member.name])} has the shape {list(tensors[member.name].shape)}, but "
        f"{evidence.listed([canonical])} has {list(tensors[canonical].shape)}{_rest(member)}. "
        "The class needs one shape for both, so loaders refuse the model.",
        (member.name, canonical),
        level=evidence.certain(inspection, Level.ERROR),
    )


def _rest(member: Member) -> str:
    if member.state is State.TRANSPOSED:
        return " (its transpose)"
    equal = member.relation.rows_equal if isinstance(member.relation, OtherShape) else None
    if not equal:
        return ""
    return " (the first row is equal)" if equal == 1 else f" (the first {equal:,} rows are equal)"


RULE = Rule("TIE010", "shapes-differ", Level.ERROR, __doc__ or "", find)
