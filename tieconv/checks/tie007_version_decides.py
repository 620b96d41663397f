"""The config leaves out the flag that one major version of transformers reads.

## What it does
Reports a config in which the tie flag is missing where transformers 4 or 5 looks for it, and the two
fall back to different values. Where no level holds the flag it is an error if the stored tensors are
right under one reading only (no head, or a head that the tied reading throws away), a warning if
transformers 5 alone would complain, and else a note. Where another level holds it, and transformers 5
reads the stored tensors right, it is a note about version 4.

## Why it matters
The same files give a tied model in one version and an untied one in the other. For eight classes
the defaults differ: those of `deepseek_vl`, `deepseek_vl_hybrid`, `granite_speech`, `internvl`, `janus`,
`mistral3` and `ovis2` became tied in transformers 5, that of `fsmt` untied. And where only one of two
nested configs holds the flag, version 4 reads one level and version 5 the other.

## Example
An InternVL without the flag (tied by default in transformers 5, untied in 4) and without a head:

    error TIE007: no level of the config declares tie_word_embeddings, and the
    defaults of transformers 4 and 5 differ: version 5 ties
    InternVLForConditionalGeneration, version 4 does not;
    language_model.lm_head.weight is not stored, so version 4 fills it with
    random numbers

## How to fix
`tieconv retie` or `tieconv untie` writes the flag at every level that is read. The remedy names the one
that keeps what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.versions_differ(inspection):
        return
    head = head_tie[1]
    tied, untied = (5, 4) if inspection.config.effective else (4, 5)
    level, outcome, remedy = _judge(inspection, head, tied, untied)
    if evidence.levels(inspection):
        # Transformers 5 goes by what is declared; where that is wrong other rules say so.
        tied_in_v5 = inspection.config.effective
        if not evidence.fits_reader(inspection, head, tied_in_v5) or evidence.fits_reader(
            inspection, head, not tied_in_v5
        ):
            return
        level = Level.NOTE
    yield RULE.finding(
        f"{_cause(inspection)}: version {tied} ties {evidence.label(inspection)}, version {untied} does not; {outcome}",
        (head.name,),
        level=level,
        remedy=remedy,
    )


def _cause(inspection: Inspection) -> str:
    """Which level of the config is missing for which version."""
    levels, level = evidence.levels(inspection), inspection.family.level_v4 or ""
    if not levels:
        return f"no level of the config declares {evidence.FLAG}, and the defaults of transformers 4 and 5 differ"
    path = f"{level}.{evidence.FLAG}".lstrip(".")
    if level in levels:
        return f"transformers 4 reads {path}, and transformers 5 reads a level that the config does not declare"
    declared = ", ".join(f"{declaring_level}.{evidence.FLAG}".lstrip(".") for declaring_level in levels)
    return f"transformers 5 reads {declared}, transformers 4 reads {path}, which the config does not declare"


def _judge(inspection: Inspection, head: Member, tied: int, untied: int) -> tuple[Level, str, Remedy | None]:
    name = evidence.listed([head.name])
    if evidence.is_missing(inspection, head):
        remedy = remedies.retie(inspection, safe=tied == 5)
        return Level.ERROR, f"{name} is not stored, so version {untied} fills it with random numbers", remedy
    if head.state in evidence.UNEQUAL:
        remedy = remedies.untie(inspection, safe=True)
        if tied == 4:
            return Level.ERROR, f"{name} is a tensor of its own, which version 4 silently discards", remedy
        return Level.WARNING, f"{name} is a tensor of its own, which version 5 keeps with a warning", remedy
    return (
        Level.NOTE,
        f"{name} is right under both readings",
        remedies.retie(inspection, safe=True),
    )


RULE = Rule("TIE007", "version-decides", Level.ERROR, __doc__ or "", find)
