"""A model declared tied stores tensors that differ.

## What it does
Reports a name of a tied group whose stored values are not those of the canonical name, byte for byte:
rows that differ, a multiple, the transpose, another matrix. A copy in another dtype that is equal after
rounding is a warning; one that differs only in the sign of zeros is a note.

## Why it matters
transformers up to 4.57 silently overwrites the head with the embedding, and saving loses it for good;
transformers 5 keeps both and prints a warning; older vLLM and mlx-lm drop the head. A fine-tune
that touched only new tokens looks like this and then repeats one token after a reload. For a
copy in another dtype it depends on the dtype asked for at loading whether the two are tied. A
constant factor is an embedding scale that was folded in.

## Example
`"tie_word_embeddings": true`, and row 7 of the head was trained alone:

    error TIE001: the config declares the model tied, but lm_head.weight differs
    from model.embed_tokens.weight (in row 7 of 8, by at most 0.5): transformers
    4 silently discards the copy, transformers 5 keeps it with a warning

## How to fix
`tieconv set-tie false` sets the flag to false at every level and leaves both tensors as they are, so that every
loader reads what transformers 5 reads today; `tieconv untie` does the same where further names must be stored.
Where one of the two is stale, `tieconv retie --from embed --force` or `--from head --force` keeps the other;
that changes the function.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each tied group that stores different values."""
    for tie in evidence.declared_tied(inspection):
        differing = [member for member in tie.members if _differs(inspection, tie, member)]
        if differing:
            yield _report(inspection, tie, differing)


def _differs(inspection: Inspection, tie: Tie, member: Member) -> bool:
    empty = evidence.is_empty(inspection, member.name) or evidence.is_empty(inspection, evidence.reference(tie))
    if tie.role is Role.OUTPUT_BIAS or empty or evidence.shapes_differ(inspection, tie, member):
        return False
    disputed = evidence.disputed(inspection) and evidence.head_member(inspection, tie) is member
    return member.state in evidence.UNEQUAL and not disputed


def _report(inspection: Inspection, tie: Tie, differing: list[Member]) -> Finding:
    canonical = evidence.reference(tie)
    figures = " and ".join(evidence.difference(member, canonical) for member in differing)
    cause = evidence.says(inspection, True) if tie.gated else f"{evidence.label(inspection)} always ties them"
    return RULE.finding(
        f"{cause}, but {figures}: {_outcome(differing)}",
        (canonical, *(member.name for member in differing)),
        level=evidence.certain(inspection, _level(differing)),
        remedy=remedies.set_untied(inspection, safe=True) if tie.gated else None,
    )


def _outcome(differing: list[Member]) -> str:
    if all(member.state is State.CAST for member in differing):
        return "transformers ties them or not, depending on the dtype that it loads them in"
    return "transformers 4 silently discards the copy, transformers 5 keeps it with a warning"


def _level(differing: list[Member]) -> Level:
    if all(member.relation.sign_of_zero_only for member in differing):
        return Level.NOTE
    return Level.WARNING if all(member.state is State.CAST for member in differing) else Level.ERROR


RULE = Rule("TIE001", "different-values", Level.ERROR, __doc__ or "", find)
