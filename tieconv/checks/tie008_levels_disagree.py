"""Two levels of the config set different tie flags.

## What it does
Reports top-level and nested tie flags that differ, if loaders read both. It is an error if transformers 5 loads the
stored tensors wrongly. Then the head is missing although transformers 5 reads false, or it differs although
transformers 5 reads true. Else it is a note: eight classes of transformers 5 write such configs by default.

## Why it matters
transformers 4 reads the nested flag. transformers 5 reads the top one for most classes, and either for some. vLLM and
mlx-lm read one of the two. Over six families, 21 of 54 combinations tie differently in 4.57 and 5.23.

## Example
A Gemma 3 with false at the top level, true in `text_config`, and no head:

    error TIE008: tie_word_embeddings is false at the top level of the config
    but true in text_config. The loader decides which one it reads.
    language_model.lm_head.weight is missing, so a loader that reads false fills
    it with random values.

## How to fix
`tieconv retie` and `tieconv untie` write one value at every level. The remedy is the command that keeps the stored
tensors. If the head is missing and transformers 5 reads the model as untied, check first that it should be tied.
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
    """Yield at most one finding."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.levels_disagree(inspection):
        return
    head = head_tie[1]
    level, outcome, remedy = _judge(inspection, head)
    yield RULE.finding(
        f"{_values(inspection)}. The loader decides which one it reads. {outcome}.",
        (head.name,),
        level=level,
        remedy=remedy,
    )


def _values(inspection: Inspection) -> str:
    values = " but ".join(
        f"{str(value).lower()} {f'in {shown(level)}' if level else 'at the top level of the config'}"
        for level, value in evidence.levels(inspection).items()
    )
    return f"{evidence.FLAG} is {values}"


def _judge(inspection: Inspection, head: Member) -> tuple[Level, str, Remedy | None]:
    name, tied = evidence.listed([head.name]), inspection.config.effective
    level = Level.NOTE if evidence.fits_reader(inspection, head, tied) else Level.ERROR
    if evidence.is_missing(inspection, head):
        outcome = f"{name} is missing, so a loader that reads false fills it with random values"
        return level, outcome, remedies.retie(inspection, safe=tied)
    if head.state in evidence.UNEQUAL:
        outcome = f"{name} differs from the embedding, and a loader that reads true may ignore it"
        return level, outcome, remedies.untie(inspection, safe=True)
    return level, f"{name} is right for both values", remedies.retie(inspection, safe=True)


RULE = Rule("TIE008", "levels-disagree", Level.ERROR, __doc__ or "", find)
