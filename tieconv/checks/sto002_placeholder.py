"""A tied name holds an empty tensor.

## What it does
Reports a tied tensor or a head bias without elements, for example of shape `[0]`.

## Why it matters
A sharded trainer (ZeRO stage 3) writes such placeholders if it saves without gathering the weights. Loaders fail with a
size mismatch, or treat the tensor as trained. In an untied model the head is lost, so it is an error.

## Example
`"tie_word_embeddings": true` and a head of shape `[0]`:

    warning STO002: lm_head.weight has no elements. A sharded save left this
    placeholder. Loaders refuse the model.

## How to fix
`tieconv retie` drops the placeholder if the tied tensor is whole under another name. Otherwise gather the weights and
save again: `stage3_gather_16bit_weights_on_model_save` of DeepSpeed, or its `zero_to_fp32.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each group with empty tensors."""
    for tie in inspection.ties:
        names = [member.name for member in tie.stored_members]
        empty = [name for name in names if evidence.is_empty(inspection, name)]
        if empty:
            replaceable = tie.declared and len(empty) < len(names)
            yield RULE.finding(
                f"{evidence.clause(empty, 'has', 'have')} no elements. A sharded save left "
                f"{evidence.verb(empty, 'this placeholder', 'these placeholders')}. Loaders refuse the model.",
                empty,
                level=Level.WARNING if replaceable else Level.ERROR,
                remedy=remedies.merge(inspection, tie) if replaceable else None,
            )


RULE = Rule("STO002", "placeholder", Level.WARNING, __doc__ or "", find)
