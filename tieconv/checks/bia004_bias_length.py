"""The head bias is longer or shorter than the head.

## What it does
Reports a head bias whose number of values is not the number of rows of the output head (of the
embedding, where the head is tied to it).

## Why it matters
Every version of transformers stops: "The size of tensor a (32003) must match the size of tensor b
(32000)". It happens when the vocabulary is resized and the bias is not.

## Example
A BERT that got one more token:

    error BIA004: cls.predictions.bias has 7 values and
    bert.embeddings.word_embeddings.weight 8 rows: loaders stop at the mismatch

## How to fix
`tieconv bias resize` pads it with zeros, as `resize_token_embeddings` of transformers does, or cuts off zeros
at its end. A bias that is longer and not zero there is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import count


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each stored bias of another length."""
    tensors = inspection.checkpoint.tensors
    matrix = _matrix(inspection)
    if matrix is None or len(tensors[matrix].shape) != 2 or not tensors[matrix].elements:
        return
    rows = tensors[matrix].shape[0]
    for name in _biases(inspection):
        length = tensors[name].elements
        if length != rows:
            yield RULE.finding(
                f"{evidence.listed([name])} has {count(length, 'value')} and {evidence.listed([matrix])} "
                f"{count(rows, 'row')}: loaders stop at the mismatch",
                (name, matrix),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.bias(inspection, "resize", safe=False) if length < rows else None,
            )


def _matrix(inspection: Inspection) -> str | None:
    head = inspection.head.output_head
    if head is None or not inspection.family.output_biases:
        return None
    return head.name if head.stored else head.tied_to


def _biases(inspection: Inspection) -> list[str]:
    pairs = (tie for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS)
    names = [member.name for tie in pairs for member in tie.stored_members]
    bias = inspection.head.output_bias
    if bias and bias.name in inspection.checkpoint.tensors:
        names.append(bias.name)
    return list(dict.fromkeys(names))


RULE = Rule("BIA004", "bias-length", Level.ERROR, __doc__ or "", find)
