"""An untied model lacks other tensors than its head.

## What it does
Reports names of an untied group, other than the head, that are not stored. These are the embeddings of the encoder and
the decoder of BART and similar classes, or the input embedding.

## Why it matters
In a tied sequence-to-sequence model one matrix fills all four names. If the flag is false, each name needs a tensor,
and transformers fills missing ones with random values. To write only the head is not enough.

An FSMT that transformers 4 saved lacks the table of the decoder, which was the head there. transformers 5 has two
tensors, and one of them is random.

## Example
A BART with `"tie_word_embeddings": false` that stores the shared matrix and the head:

    error TIE011: model.encoder.embed_tokens.weight and
    model.decoder.embed_tokens.weight are missing beside model.shared.weight,
    but the config says untied. transformers fills them with random values.

## How to fix
`tieconv untie` writes every missing name as a copy of the stored one. If all stored tensors are equal, `tieconv retie`
sets the flag to true instead (review first: changes the model's outputs).
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import unexplained
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each untied group with missing names."""
    for tie in evidence.declared_untied(inspection) if not unexplained(inspection) else ():
        absent = [member.name for member in tie.members if _is_needed(inspection, tie, member)]
        if absent and tie.role is not Role.OUTPUT_BIAS:
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models lack such names

            stored = load(inspection, TRANSFORMERS_4).source(absent[0]) or evidence.reference(tie)
            yield RULE.finding(
                f"{evidence.clause(absent, 'is', 'are')} missing beside {evidence.listed([stored])}, but "
                f"{evidence.says(inspection, False)}. transformers fills "
                f"{evidence.verb(absent, 'it', 'them')} with random values.",
                (*absent, stored),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.untie(inspection, safe=False),
            )


def _is_needed(inspection: Inspection, tie: Tie, member: Member) -> bool:
    return evidence.is_missing(inspection, member) and evidence.head_member(inspection, tie) is not member


RULE = Rule("TIE011", "missing-copies", Level.ERROR, __doc__ or "", find)
