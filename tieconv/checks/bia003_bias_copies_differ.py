"""The two names of a head bias hold different values.

## What it does
Reports a head bias that is stored under both of its names with values that differ: an error in tied
models, a note in untied ones, where transformers 5 has two parameters and reads the inner one.

## Why it matters
transformers 4 reads the outer name (`cls.predictions.bias`) and says nothing, transformers 5 the inner
one (`cls.predictions.decoder.bias`): the same file gives two different models.

## Example
A BERT whose two biases differ in one value:

    error BIA003: cls.predictions.decoder.bias differs from cls.predictions.bias
    (in value 5 of 8, by at most 0.25), and both are the head bias: which one
    counts depends on the version of transformers

## How to fix
Decide which of the two was trained, usually the one that the framework of the training reads, and overwrite
the other with it: `tieconv bias unify --from decoder` keeps what transformers 5 reads, `--from bias` what
transformers 4 reads. In an untied model nothing needs fixing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each stored bias that differs; lengths are BIA004's."""
    for tie in inspection.ties:
        for member in tie.members if tie.role is Role.OUTPUT_BIAS else ():
            if member.state in evidence.UNEQUAL and not evidence.shapes_differ(inspection, tie, member):
                first = evidence.reference(tie)
                yield RULE.finding(
                    f"{evidence.difference(member, first, 'values')}, and both are the head bias: {_read(inspection)}",
                    (first, member.name),
                    level=_level(tie, member),
                    remedy=_remedy(inspection, tie),
                )


def _read(inspection: Inspection) -> str:
    from tieconv.loaders.load import head_bias  # few models have such a pair

    read = {bias.stored for bias in head_bias(inspection).values()}
    if len(read) > 1:
        return "which one counts depends on the version of transformers"
    return f"transformers reads {evidence.listed(filter(None, read))}"


def _remedy(inspection: Inspection, tie: Tie) -> Remedy | None:
    return remedies.bias(inspection, "unify", ("--from", "decoder"), safe=True) if tie.declared else None


def _level(tie: Tie, member: Member) -> Level:
    harmless = not tie.declared or member.relation.sign_of_zero_only
    return Level.NOTE if harmless else Level.ERROR


RULE = Rule("BIA003", "bias-copies-differ", Level.ERROR, __doc__ or "", find)
