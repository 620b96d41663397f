"""A model declared untied lacks other tensors than its head.

## What it does
Reports names of a group, other than the head, that are not stored although the config makes each of them
a parameter of its own: the encoder's and decoder's embeddings of BART and its kin, or the input
embedding itself.

## Why it matters
Tied, one matrix fills all four names of a sequence-to-sequence model. With the flag set to false each
needs its own, and transformers fills those that are absent with random numbers; writing only the head is
not enough. FSMT that transformers 4 saved lacks the decoder's table, which was the head there: transformers 5 has
two, and one of them is then random.

## Example
A BART with `"tie_word_embeddings": false` that stores the shared matrix and the head:

    error TIE011: the config declares the model untied, but
    model.encoder.embed_tokens.weight and model.decoder.embed_tokens.weight are
    not stored beside model.shared.weight: transformers fills them with random
    numbers

## How to fix
`tieconv untie` writes every absent name as a copy of the stored one; `tieconv retie` sets the flag to
true instead, where all that is stored is equal. Both give another function than the random tensors of
today.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each group that the flag separates and whose names are not all stored."""
    for tie in evidence.declared_untied(inspection):
        absent = [member.name for member in tie.members if _is_needed(inspection, tie, member)]
        if absent and tie.role is not Role.OUTPUT_BIAS:
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models lack such names

            stored = load(inspection, TRANSFORMERS_4).source(absent[0]) or evidence.reference(tie)
            yield RULE.finding(
                f"{evidence.says(inspection, False)}, but {evidence.clause(absent, 'is', 'are')} not stored "
                f"beside {evidence.listed([stored])}: transformers fills "
                f"{evidence.verb(absent, 'it', 'them')} with random numbers",
                (*absent, stored),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.untie(inspection, safe=False),
            )


def _is_needed(inspection: Inspection, tie: Tie, member: Member) -> bool:
    return evidence.is_missing(inspection, member) and evidence.head_member(inspection, tie) is not member


RULE = Rule("TIE011", "missing-copies", Level.ERROR, __doc__ or "", find)
