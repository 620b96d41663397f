"""A model declared untied stores a head that equals the embedding.

## What it does
Notes a group in which every name is stored and all are equal byte for byte, though nothing declares them
tied.

## Why it matters
Nothing is wrong: the model loads and answers the same everywhere. But the bytes are there twice, on disk
and in memory, and the two drift apart in the next fine-tune. Untied on purpose, before a merge or for a
loader that wants the head, this is what it looks like.

## Example
`"tie_word_embeddings": false`, head and embedding equal:

    note TIE004: lm_head.weight equals model.embed_tokens.weight byte for byte
    in an untied model: tied, it would take 128 B less

## How to fix
Nothing needs fixing. `tieconv retie` stores one of them and sets the flag to true.
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
    """At most one finding, where retying is possible."""
    for tie in evidence.declared_untied(inspection):
        empty = evidence.is_empty(inspection, evidence.reference(tie))  # STO002 reports it
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
        f"{evidence.clause(copies, 'equals', 'equal')} {evidence.listed([evidence.reference(tie)])} "
        f"byte for byte in an untied model: tied, it would take {size(wasted)} less"
    )


RULE = Rule("TIE004", "could-be-tied", Level.NOTE, __doc__ or "", find)
