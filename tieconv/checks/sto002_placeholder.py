"""A tied name holds an empty tensor.

## What it does
Reports a name of a tied group, or of the head bias, that is stored with no element at all, such as shape
`[0]`.

## Why it matters
A sharded trainer (ZeRO stage 3) leaves such placeholders when weights are saved without being gathered
first; loaders stop at the size mismatch, or take the tensor as trained. In an untied model the
head itself is lost, which makes it an error.

## Example
`"tie_word_embeddings": true` and a head of shape `[0]`:

    warning STO002: lm_head.weight is stored without any element: a placeholder
    of a sharded save, at which loaders stop

## How to fix
`tieconv retie` drops the placeholder of a tied tensor that is whole under another name. Otherwise save again with
the weights gathered (`stage3_gather_16bit_weights_on_model_save` of DeepSpeed, or its `zero_to_fp32.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each group with empty tensors."""
    for tie in inspection.ties:
        names = [member.name for member in tie.stored_members]
        empty = [name for name in names if evidence.is_empty(inspection, name)]
        if empty:
            replaceable = tie.declared and len(empty) < len(names)
            yield RULE.finding(
                f"{evidence.clause(empty, 'is', 'are')} stored without any element: a "
                "placeholder of a sharded save, at which loaders stop",
                empty,
                level=Level.WARNING if replaceable else Level.ERROR,
                remedy=remedies.merge(inspection, tie) if replaceable else None,
            )


RULE = Rule("STO002", "placeholder", Level.WARNING, __doc__ or "", find)
