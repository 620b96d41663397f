"""Rules about the tie flag: its levels, its type, and the release that decides."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def version_decides(inspection: Inspection) -> Iterator[Finding]:
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
    yield VERSION_DECIDES.finding(
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


VERSION_DECIDES = Rule(
    "TIE007",
    "version-decides",
    Level.ERROR,
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
""",
    version_decides,
)


def levels_disagree(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.levels_disagree(inspection):
        return
    head = head_tie[1]
    level, outcome, remedy = _judge_levels(inspection, head)
    yield LEVELS_DISAGREE.finding(
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


def _judge_levels(inspection: Inspection, head: Member) -> tuple[Level, str, Remedy | None]:
    name, tied = evidence.listed([head.name]), inspection.config.effective
    level = Level.NOTE if evidence.fits_reader(inspection, head, tied) else Level.ERROR
    if evidence.is_missing(inspection, head):
        outcome = f"{name} is missing, so a loader that reads false fills it with random values"
        return level, outcome, remedies.retie(inspection, safe=tied)
    if head.state in evidence.UNEQUAL:
        outcome = f"{name} differs from the embedding, and a loader that reads true may ignore it"
        return level, outcome, remedies.untie(inspection, safe=True)
    return level, f"{name} is right for both values", remedies.retie(inspection, safe=True)


LEVELS_DISAGREE = Rule(
    "TIE008",
    "levels-disagree",
    Level.ERROR,
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
""",
    levels_disagree,
)


def flag_type(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each level whose value is not a boolean."""
    for entry in inspection.config.declared:
        if entry.present and not isinstance(entry.value, bool):
            value = "null" if entry.value is None else repr(entry.value)
            yield FLAG_TYPE.finding(
                f"{shown(entry.path)} is {shown(value)}, which is not a JSON boolean. "
                "transformers 5 refuses to load the config. Other loaders disagree about its meaning.",
                remedy=_remedy(inspection),
            )


def _remedy(inspection: Inspection) -> Remedy | None:
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not head_tie[0].consistent or not head_tie[0].canonical_stored:
        return None
    verb = remedies.retie if inspection.config.effective else remedies.untie
    return verb(inspection, safe=True)


FLAG_TYPE = Rule(
    "TIE013",
    "flag-type",
    Level.ERROR,
    """The tie flag is not true or false.

## What it does
Reports a `tie_word_embeddings`, at any level, that is a string, a number or null.

## Why it matters
transformers 5 refuses to load such a config (measured with 5.23: "expected bool, got str"). Some loaders use the truth
value, so the string `"false"` means true. Others compare it with true and false, so it means neither.

## Example

    error TIE013: tie_word_embeddings is 'true', which is not a JSON boolean.
    transformers 5 refuses to load the config. Other loaders disagree about its
    meaning.

## How to fix
`tieconv retie` or `tieconv untie` writes a boolean. The remedy is the command that keeps the stored tensors. If the
flag should have the opposite value, edit the config instead.
""",
    flag_type,
)
