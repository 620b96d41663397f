"""An untied model stores a head that equals the embedding.

## What it does
Notes an untied group whose names are all stored and byte-identical.

## Why it matters
Nothing is wrong: every loader gives the same outputs. But the bytes exist twice, on disk and in memory, and the next
fine-tune makes the two different. Perhaps someone untied the model on purpose, for a merge or for a loader that needs
the head.

## Example
`"tie_word_embeddings": false`, head and embedding equal:

    note TIE004: lm_head.weight is a byte-identical copy of
    model.embed_tokens.weight. The model is untied; a tied model would be 128 B
    smaller.

## How to fix
Nothing needs a fix. `tieconv retie` stores one of the two and sets the flag to true.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import size


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding, if `tieconv retie` accepts the model."""
    for tie in evidence.declared_untied(inspection):
        empty = evidence.is_empty(inspection, evidence.reference(tie))  # STO002 reports this tensor
        if _is_redundant(tie) and not empty and not evidence.disputed(inspection):
            remedy = remedies.retie(inspection, safe=True)
            if remedy:
                yield RULE.finding(_message(inspection, tie), _names(tie), remedy=remedy)


def _is_redundant(tie: Tie) -> bool:
    states = {member.state for member in tie.members}
    return tie.role is Role.WORD_EMBEDDING and State.IDENTICAL in states and states <= evidence.EQUAL - {State.ABSENT}


def _names(tie: Tie) -> tuple[str, ...]:
    return tuple(member.name for member in tie.members)


def _message(inspection: Inspection, tie: Tie) -> str:
    copies = [member.name for member in tie.members if member.state is State.IDENTICAL]
    wasted = sum(inspection.checkpoint.tensors[name].nbytes for name in copies)
    return (
        f"{evidence.are_copies(copies, evidence.reference(tie))}. "
        f"The model is untied; a tied model would be {size(wasted)} smaller."
    )


RULE = Rule("TIE004", "could-be-tied", Level.NOTE, __doc__ or "", find)
