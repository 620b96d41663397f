"""An untied model stores its head bias under one of two names.

## What it does
Some classes have two names for the head bias: `cls.predictions.bias` and `cls.predictions.decoder.bias`, or
`lm_head.bias` and `lm_head.decoder.bias`. The rule reports an untied model that stores only one of them. It is an error
if the values are not zero, else a note.

## Why it matters
The two names are one parameter only if the flag is true. In an untied model transformers 5 reads the inner name, and
fills it with zeros if it is missing. transformers 4 writes the outer name, so its trained bias is lost. transformers 4
needs the outer name. If the bias is all zero, nothing is lost, but transformers prints a warning.

## Example
A BERT with `"tie_word_embeddings": false` that transformers 4 saved:

    error BIA002: cls.predictions.decoder.bias is missing, but the model is
    untied. The stored cls.predictions.bias is not zero. transformers 5 fills
    cls.predictions.decoder.bias with zeros.

## How to fix
`tieconv bias unify` stores the bias under both names.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.head import BiasState
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each bias pair with a missing name."""
    for tie in evidence.declared_untied(inspection):
        absent = [member.name for member in tie.members if not member.stored]
        if tie.role is Role.OUTPUT_BIAS and absent:
            yield _report(inspection, tie, absent)


def _report(inspection: Inspection, tie: Tie, absent: list[str]) -> Finding:
    bias, stored = inspection.head.output_bias, evidence.reference(tie)
    trained = bias is not None and bias.state is BiasState.NONZERO
    state = "is not zero" if trained else "is all zero" if bias and bias.state is BiasState.ZERO else "was not read"
    word_tie = inspection.word_tie
    whole = word_tie is None or word_tie.consistent is True
    return RULE.finding(
        f"{evidence.clause(absent, 'is', 'are')} missing, but the model is untied. The stored "
        f"{evidence.listed([stored])} {state}. {_outcome(inspection, absent, stored)}.",
        (*absent, stored),
        level=Level.ERROR if trained else Level.NOTE,
        remedy=remedies.bias(inspection, "unify", safe=not trained and whole),
    )


def _outcome(inspection: Inspection, absent: list[str], stored: str) -> str:
    from tieconv.loaders.load import head_bias  # few models have half a pair
    from tieconv.loaders.loaded import Absence

    names = evidence.listed(absent)
    says = {Absence.ZERO: f"fills {names} with zeros", Absence.UNSET: f"leaves {names} without values"}
    absences = {version: bias.absence for version, bias in head_bias(inspection).items() if bias.absence in says}
    clauses = [
        f"transformers {version} {says[absence]}" for version, absence in absences.items() if absence is not None
    ]
    return ". ".join(clauses) or f"transformers reads {evidence.listed([stored])}"


RULE = Rule("BIA002", "half-a-bias-pair", Level.ERROR, __doc__ or "", find)
