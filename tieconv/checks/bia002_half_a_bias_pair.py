"""An untied model stores its head bias under one of two names.

## What it does
Reports a head bias with two names (`cls.predictions.bias` and `cls.predictions.decoder.bias`, or
`lm_head.bias` and `lm_head.decoder.bias`) of which an untied model stores one: an error where the values
are not zero, else a note.

## Why it matters
The pair is one parameter only while the flag is true. Untied, transformers 5 reads the inner name and
starts it at zero where it is absent, so that a trained bias stored under the outer name, as transformers
4 wrote it, is lost; transformers 4 needs the outer name. Zeros lose nothing but a warning at
loading.

## Example
A BERT with `"tie_word_embeddings": false` that was saved by transformers 4:

    error BIA002: cls.predictions.decoder.bias is not stored beside
    cls.predictions.bias, which is not zero, in an untied model: transformers 5
    starts it at zero

## How to fix
`tieconv bias unify` stores the bias under both names.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import BiasState, Inspection
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each bias pair of which one name is stored."""
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
        f"{evidence.listed(absent)} is not stored beside {evidence.listed([stored])}, which {state}, "
        f"in an untied model: {_outcome(inspection)}",
        (*absent, stored),
        level=Level.ERROR if trained else Level.NOTE,
        remedy=remedies.bias(inspection, "unify", safe=not trained and whole),
    )


def _outcome(inspection: Inspection) -> str:
    from tieconv.loaders.load import head_bias  # few models have half a pair
    from tieconv.loaders.loaded import Absence

    says = {Absence.ZERO: "starts it at zero", Absence.UNSET: "leaves it without values"}
    absences = {version: bias.absence for version, bias in head_bias(inspection).items() if bias.absence in says}
    clauses = [
        f"transformers {version} {says[absence]}" for version, absence in absences.items() if absence is not None
    ]
    return " and ".join(clauses) or "transformers reads the other name"


RULE = Rule("BIA002", "half-a-bias-pair", Level.ERROR, __doc__ or "", find)
