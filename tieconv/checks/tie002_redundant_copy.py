"""A tied tensor is stored twice.

## What it does
Reports names of a tied group that are stored and equal the canonical one byte for byte, with the bytes
that this costs. One storage under two names costs nothing and is not reported; nor are the two names of
a bias.

## Why it matters
transformers ties the pair and ignores the copy, but a loader may know no parameter of that name: versions of
vLLM stopped with `KeyError: 'lm_head.weight'`, of mlx-lm with "Received parameters not in model" (C04), for
some classes (`tieconv inspect --consumers` says what is predicted today). The copy is
typically written by a trainer that gathers a sharded state dict (C05), and costs up to a gigabyte.

## Example
`"tie_word_embeddings": true`, both names stored:

    warning TIE002: lm_head.weight repeats model.embed_tokens.weight byte for byte in a tied model: 128
    B too many, and some versions of vLLM and mlx-lm stop at the name

## How to fix
`tieconv retie` drops the copy and keeps the canonical name; the shard index follows. Where a loader that was asked for
(`--for`) needs the copy, this is a note, and no command is given.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State, Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import size


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied group with identical copies; those with a NaN are NUM001's."""
    for tie in evidence.declared_tied(inspection):
        copies = [
            member.name for member in tie.members if member.state is State.IDENTICAL and not member.detail.get("nan")
        ]
        if copies and tie.role is not Role.OUTPUT_BIAS:
            yield _report(inspection, tie, copies)


def _report(inspection: Inspection, tie: Tie, copies: list[str]) -> Finding:
    canonical = evidence.reference(tie)
    wasted = sum(inspection.checkpoint.tensors[name].nbytes for name in copies)
    return RULE.finding(
        f"{evidence.clause(copies, 'repeats', 'repeat')} {evidence.listed([canonical])} "
        f"byte for byte in a tied model: {size(wasted)} too many, and some versions of vLLM and mlx-lm stop "
        "at the name",
        (canonical, *copies),
        remedy=remedies.merge(inspection, tie),
    )


RULE = Rule("TIE002", "redundant-copy", Level.WARNING, __doc__ or "", find)
