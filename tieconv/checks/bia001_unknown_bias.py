"""A bias is stored for a head that has none.

## What it does
Reports a bias for the head of a class that has no head bias. It is an error if the bias is not zero. It is a note if
the bias is all zero or if tieconv did not read it.

## Why it matters
transformers reports the tensor as unexpected and ignores it. So a trained bias is lost without an error, and the most
likely token changes. vLLM, mlx-lm and the converter of llama.cpp refuse the extra name. An all-zero bias changes
nothing, and some tools need one.

## Example
A Llama with a trained `lm_head.bias`:

    error BIA001: lm_head.bias holds values up to 1.39, but LlamaForCausalLM has
    no head bias. transformers ignores the tensor. Other loaders may refuse it.

## How to fix
`--bias strip` of `tieconv retie` and `tieconv untie` removes an all-zero bias. A bias that is not zero needs a class
that reads it. tieconv removes no trained values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.head import BiasState, OutputBias
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    bias = inspection.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return
    if inspection.family.output_biases or inspection.family.knowledge is not Knowledge.TABLE:
        return
    yield RULE.finding(
        f"{evidence.listed([bias.name])} {_content(bias)}, but {evidence.label(inspection)} has no head bias. "
        "transformers ignores the tensor. Other loaders may refuse it.",
        (bias.name,),
        level=Level.ERROR if bias.state is BiasState.NONZERO else Level.NOTE,
        remedy=_remedy(inspection) if bias.state is BiasState.ZERO else None,
    )


def _content(bias: OutputBias) -> str:
    match bias.state:
        case BiasState.ZERO:
            return "is all zero"
        case BiasState.NONZERO if bias.max_abs is not None:
            return f"holds values up to {bias.max_abs:.3g}"
        case BiasState.NONZERO:
            return "holds values other than zero"
        case BiasState.UNREAD | BiasState.ABSENT:
            return "is stored"
        case _:
            assert_never(bias.state)


def _remedy(inspection: Inspection) -> Remedy | None:
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or head_tie[0].consistent is not True or evidence.disputed(inspection):
        return None
    verb = remedies.retie if inspection.config.effective else remedies.untie
    return verb(inspection, ("--bias", "strip"), safe=True)


RULE = Rule("BIA001", "unknown-bias", Level.ERROR, __doc__ or "", find)
