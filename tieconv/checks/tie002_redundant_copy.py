"""A tied tensor is stored twice.

## What it does
Reports byte-identical copies of the canonical tensor in a tied group, with the wasted bytes. The rule does not report
one storage under two names, which wastes nothing, or the two names of a bias.

## Why it matters
Every loader that ties the pair ignores the copy. The copy costs up to a gigabyte on disk and in transfer. A trainer
that gathers a sharded state dict typically writes it. Some loaders refuse the extra name for some classes.
`tieconv inspect --consumers` lists them with their versions, and `tieconv check --for LOADER` reports them as CON003.

## Example
`"tie_word_embeddings": true`, both names stored:

    warning TIE002: lm_head.weight is a byte-identical copy of
    model.embed_tokens.weight. The model is tied, so the copy wastes 128 B.

## How to fix
`tieconv retie` drops the copy, keeps the canonical name and updates the index.

A copy that is wanted is a note, and no command is given. A copy is wanted if a loader of `--for` needs it. It is also
wanted if the metadata entry `tieconv.keep` of its safetensors file lists it. `tieconv untie --keep-flag` writes that
entry. Files without metadata need an `ignore` with its reason in `tieconv.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import KEY, marked
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import size


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each tied group with identical copies. NUM001 reports those with a NaN."""
    wanted = marked(inspection.checkpoint.files)
    for tie in evidence.declared_tied(inspection):
        copies = [member.name for member in tie.members if _is_copy(inspection, tie, member)]
        if copies and tie.role is not Role.OUTPUT_BIAS:
            yield _report(inspection, tie, copies, is_wanted=wanted.issuperset(copies))


def _is_copy(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether transformers ties the copy. STO002 reports empty tensors, NUM001 copies with a NaN."""
    equal = member.state is State.IDENTICAL and not evidence.is_empty(inspection, member.name)
    return equal and not member.relation.holds_nan and not evidence.in_parts(inspection, tie, member)


def _report(inspection: Inspection, tie: Tie, copies: list[str], *, is_wanted: bool) -> Finding:
    canonical = evidence.reference(tie)
    wasted = size(sum(inspection.checkpoint.tensors[name].nbytes for name in copies))
    is_single = len(copies) == 1
    the, verb = ("copy", "wastes") if is_single else ("copies", "waste")
    why = (
        f"The metadata entry {KEY} says that the {the} of {wasted} {'is' if is_single else 'are'} wanted."
        if is_wanted
        else f"The model is tied, so the {the} {verb} {wasted}."
    )
    return RULE.finding(
        f"{evidence.are_copies(copies, canonical)}. {why}",
        (canonical, *copies),
        level=Level.NOTE if is_wanted else None,
        remedy=None if is_wanted else remedies.merge(inspection, tie),
    )


RULE = Rule("TIE002", "redundant-copy", Level.WARNING, __doc__ or "", find)
