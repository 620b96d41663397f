"""A tied model stores tensors that differ.

## What it does
Reports a name of a tied group whose stored values differ from those of the canonical name. Rows may differ, or the
tensor is a multiple, the transpose, or another matrix. It is a warning if the copy has another dtype and is equal after
rounding. It is a note if only the sign of zeros differs.

## Why it matters
transformers up to 4.57 overwrites the head with the embedding and prints nothing. A save then loses the head.
transformers 5 keeps both and prints a warning. Early releases of vLLM and mlx-lm drop the head.

A fine-tune that changed only new tokens gives such a model, which repeats one token after a reload. If the copy has
another dtype, the dtype at loading decides whether the two are tied. A constant factor means that a tool folded an
embedding scale into the head.

## Example
`"tie_word_embeddings": true`, and only row 7 of the head was trained:

    error TIE001: lm_head.weight differs from model.embed_tokens.weight (in row
    7 of 8, by at most 0.5), but the config says tied. transformers 4 ignores
    lm_head.weight. transformers 5 uses it.

## How to fix
`tieconv set-tie false` sets the flag to false at every level and does not change the tensors. Then every loader reads
what transformers 5 reads today. If the untied model needs other names too, `tieconv untie` does the same and stores
them. If one of the two is stale, `tieconv retie --from embed --force` or `--from head --force` keeps the other (review
first: changes the model's outputs).
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
    """Yield one finding for each tied group that stores different values."""
    for tie in evidence.declared_tied(inspection):
        differing = [member for member in tie.members if _differs(inspection, tie, member)]
        if differing:
            yield _report(inspection, tie, differing)


def _differs(inspection: Inspection, tie: Tie, member: Member) -> bool:
    empty = evidence.is_empty(inspection, member.name) or evidence.is_empty(inspection, evidence.reference(tie))
    if evidence.in_parts(inspection, tie, member) or tie.role is Role.OUTPUT_BIAS or empty:
        return False
    if evidence.shapes_differ(inspection, tie, member):
        return False
    disputed = evidence.disputed(inspection) and evidence.head_member(inspection, tie) is member
    return member.state in evidence.UNEQUAL and not disputed


def _report(inspection: Inspection, tie: Tie, differing: list[Member]) -> Finding:
    canonical = evidence.reference(tie)
    names = [member.name for member in differing]
    figures = ". ".join(evidence.difference(member, canonical) for member in differing)
    cause = evidence.says(inspection, True) if tie.gated else f"{evidence.label(inspection)} always ties them"
    but = ", but" if len(names) == 1 else ". However,"
    return RULE.finding(
        f"{figures}{but} {cause}. {_outcome(differing)}",
        (canonical, *names),
        level=evidence.certain(inspection, _level(differing)),
        remedy=remedies.set_untied(inspection, safe=True) if tie.gated else None,
    )


def _outcome(differing: list[Member]) -> str:
    if all(member.state is State.CAST for member in differing):
        return "Whether transformers ties them depends on the dtype that it loads them in."
    names = evidence.listed(member.name for member in differing)
    pronoun = "it" if len(differing) == 1 else "them"
    return f"transformers 4 ignores {names}. transformers 5 uses {pronoun}."


def _level(differing: list[Member]) -> Level:
    if all(member.relation.sign_of_zero_only for member in differing):
        return Level.NOTE
    return Level.WARNING if all(member.state is State.CAST for member in differing) else Level.ERROR


RULE = Rule("TIE001", "different-values", Level.ERROR, __doc__ or "", find)
