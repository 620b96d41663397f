"""Tied tensors have different shapes.

## What it does
Reports a stored name of a tied group whose shape is not the canonical tensor's: more or fewer rows, or
vocabulary and width swapped. The swapped case is reported in untied models too, where the head is the
embedding's transpose.

## Why it matters
Loaders stop at the size mismatch. Rows differ when one of the two was padded for tensor parallelism or
resized for new tokens and the other was not; a swapped shape comes from a framework that
stores linear weights as `[in, out]`.

## Example
`"tie_word_embeddings": true`, and one row more in the head:

    error TIE010: lm_head.weight has the shape [9, 4] and
    model.embed_tokens.weight [8, 4] (the first 8 rows are equal), where the
    class has one shape for both: loaders stop at the mismatch

## How to fix
Pad or trim both tensors, and the head bias, to the vocabulary size of the config, and transpose a
swapped one, with the tool that wrote them. No command of tieconv does that.
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
    """One finding for each stored name with another shape."""
    tied = list(evidence.declared_tied(inspection))
    for tie in inspection.ties:
        for member in tie.members:
            wrong = tie in tied or member.state is State.TRANSPOSED
            if wrong and tie.role is not Role.OUTPUT_BIAS and evidence.shapes_differ(inspection, tie, member):
                yield _report(inspection, tie, member)


def _report(inspection: Inspection, tie: Tie, member: Member) -> Finding:
    canonical = evidence.reference(tie)
    tensors = inspection.checkpoint.tensors
    return RULE.finding(
        f"{evidence.listed([member.name])} has the shape {list(tensors[member.name].shape)} and "
        f"{evidence.listed([canonical])} {list(tensors[canonical].shape)}{_rest(member)}, "
        "where the class has one shape for both: loaders stop at the mismatch",
        (member.name, canonical),
        level=evidence.certain(inspection, Level.ERROR),
    )


def _rest(member: Member) -> str:
    if member.state is State.TRANSPOSED:
        return ", of which it is the transpose"
    equal = member.relation.rows_equal if isinstance(member.relation, OtherShape) else None
    if not equal:
        return ""
    return " (the first row is equal)" if equal == 1 else f" (the first {equal:,} rows are equal)"


RULE = Rule("TIE010", "shapes-differ", Level.ERROR, __doc__ or "", find)
