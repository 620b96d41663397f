"""The config does not set the flag that one major version of transformers reads.

## What it does
Reports a config without the tie flag that transformers 4 or 5 reads. The two then tie differently. If no level has the
flag, the level of the finding depends on the stored tensors. It is an error if one version ignores the head or fills it
with random values. It is a warning if only transformers 5 prints a warning, else a note. If another level has the flag
and transformers 5 loads the tensors right, it is a note about transformers 4.

## Why it matters
The same files give a tied model in one version and an untied model in the other. The defaults of eight classes differ.
Those of `deepseek_vl`, `deepseek_vl_hybrid`, `granite_speech`, `internvl`, `janus`, `mistral3` and `ovis2` became tied
in transformers 5. That of `fsmt` became untied. If only one of two nested configs has the flag, transformers 4 and 5
may read different levels.

## Example
An InternVL without the flag and without a head. It is tied by default in transformers 5, and untied in 4:

    error TIE007: The config does not set tie_word_embeddings, and the defaults
    of transformers 4 and 5 differ. transformers 5 ties
    InternVLForConditionalGeneration, but transformers 4 does not.
    language_model.lm_head.weight is missing, so transformers 4 fills it with
    random values.

## How to fix
`tieconv retie` or `tieconv untie` writes the flag at every level that a loader reads. The remedy is the command that
keeps the stored tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.versions_differ(inspection):
        return
    head = head_tie[1]
    tied, untied = (5, 4) if inspection.config.effective else (4, 5)
    level, outcome, remedy = _judge(inspection, head, tied, untied)
    if evidence.levels(inspection):
        # transformers 5 reads the declared flag. Other rules report a wrong one.
        tied_in_v5 = inspection.config.effective
        if not evidence.fits_reader(inspection, head, tied_in_v5) or evidence.fits_reader(
            inspection, head, not tied_in_v5
        ):
            return
        level = Level.NOTE
    yield RULE.finding(
        f"{_cause(inspection)}. transformers {tied} ties {evidence.label(inspection)}, but transformers {untied} does "
        f"not. {outcome}.",
        (head.name,),
        level=level,
        remedy=remedy,
    )


def _cause(inspection: Inspection) -> str:
    """Return which version finds no flag at its level of the config."""
    levels, level = evidence.levels(inspection), inspection.family.level_v4 or ""
    if not levels:
        return f"The config does not set {evidence.FLAG}, and the defaults of transformers 4 and 5 differ"
    path = f"{level}.{evidence.FLAG}".lstrip(".")
    if level in levels:
        return f"transformers 4 reads {path}, but transformers 5 reads a level without this flag"
    declared = ", ".join(f"{declaring_level}.{evidence.FLAG}".lstrip(".") for declaring_level in levels)
    return f"transformers 5 reads {declared}. transformers 4 reads {path}, which the config does not set"


def _judge(inspection: Inspection, head: Member, tied: int, untied: int) -> tuple[Level, str, Remedy | None]:
    name = evidence.listed([head.name])
    if evidence.is_missing(inspection, head):
        remedy = remedies.retie(inspection, safe=tied == 5)
        return Level.ERROR, f"{name} is missing, so transformers {untied} fills it with random values", remedy
    if head.state in evidence.UNEQUAL:
        remedy = remedies.untie(inspection, safe=True)
        if tied == 4:
            return Level.ERROR, f"{name} differs from the embedding, and transformers 4 ignores it", remedy
        return Level.WARNING, f"{name} differs from the embedding, and transformers 5 uses it with a warning", remedy
    return (
        Level.NOTE,
        f"{name} is right for both versions",
        remedies.retie(inspection, safe=True),
    )


RULE = Rule("TIE007", "version-decides", Level.ERROR, __doc__ or "", find)
