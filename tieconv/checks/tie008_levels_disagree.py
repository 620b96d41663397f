"""Two levels of the config declare different ties.

## What it does
Reports a config whose top level and nested text config (or decoder) both hold the tie flag, with
different values, and both are read. It is an error where transformers 5 gets the stored tensors wrong:
no head under an untied reading, or a head that differs under a tied one. Where it gets them right it is
a note; eight classes of transformers 5 write such configs by default.

## Why it matters
transformers 4 obeys the nested flag, transformers 5 the top one for most classes and either of them for
some; vLLM and mlx-lm read one or the other. Over six families, 21 of 54 combinations tie differently
between 4.57 and 5.23.

## Example
A Gemma 3 with false at the top, true in `text_config`, and no head:

    error TIE008: tie_word_embeddings is false at the top of the config but true
    in text_config, and which one counts depends on the reader;
    language_model.lm_head.weight is not stored, so a loader that reads false
    fills it with random numbers

## How to fix
`tieconv retie` and `tieconv untie` write one value at every level. The remedy names the one that keeps
what is stored; where the head is missing and transformers 5 reads the model as untied, check that it was
meant to be tied.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.levels_disagree(inspection):
        return
    head = head_tie[1]
    level, outcome, remedy = _judge(inspection, head)
    yield RULE.finding(
        f"{_values(inspection)}, and which one counts depends on the reader; {outcome}",
        (head.name,),
        level=level,
        remedy=remedy,
    )


def _values(inspection: Inspection) -> str:
    values = " but ".join(
        f"{str(value).lower()} {f'in {shown(level)}' if level else 'at the top of the config'}"
        for level, value in evidence.levels(inspection).items()
    )
    return f"{evidence.FLAG} is {values}"


def _judge(inspection: Inspection, head: Member) -> tuple[Level, str, Remedy | None]:
    name, tied = evidence.listed([head.name]), inspection.config.effective
    level = Level.NOTE if evidence.fits_reader(inspection, head, tied) else Level.ERROR
    if evidence.is_missing(inspection, head):
        outcome = f"{name} is not stored, so a loader that reads false fills it with random numbers"
        return level, outcome, remedies.retie(inspection, safe=tied)
    if head.state in evidence.UNEQUAL:
        outcome = f"{name} is a tensor of its own, which a loader that reads true can discard"
        return level, outcome, remedies.untie(inspection, safe=True)
    return level, f"{name} is right under both values", remedies.retie(inspection, safe=True)


RULE = Rule("TIE008", "levels-disagree", Level.ERROR, __doc__ or "", find)
