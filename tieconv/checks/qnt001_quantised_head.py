"""A tied model stores its head as quantised codes.

## What it does
Reports a model declared tied whose output head is stored as codes and scales while the embedding is a plain
float matrix.

## Why it matters
The same matrix then has two encodings, and which one gives the logits depends on the loader: those that tie use
the embedding and drop the codes, those that read the codes use them, and some leave the head without values
and answer "!!!!".

## Example
`"tie_word_embeddings": true`, and a head that was quantised on its own:

    warning QNT001: lm_head.weight is stored as quantised codes
    (lm_head.qweight), and the config declares the model tied to
    model.embed_tokens.weight: which of the two gives the logits depends on the
    loader

## How to fix
Quantise again, either with the head left out of it (`lm_head: false`, or in the list of modules to ignore) or
from an untied model. tieconv does not compare codes with floats, so no command decides it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    head_tie, embedding = evidence.head_tie(inspection), inspection.head.input_embedding
    if head_tie is None or embedding is None or embedding.dtype not in FLOATS or not head_tie[0].declared:
        return
    tensors = inspection.checkpoint.tensors
    codes = quantised_twin(head_tie[1].name, tensors)
    if codes is None or quantised_twin(embedding.name, tensors):
        return
    yield RULE.finding(
        f"{evidence.listed([head_tie[1].name])} is stored as quantised codes ({evidence.listed([codes])}), and "
        f"{evidence.says(inspection, True)} to {evidence.listed([embedding.name])}: which of the two gives the "
        "logits depends on the loader",
        (head_tie[1].name, codes, embedding.name),
        level=evidence.certain(inspection, Level.WARNING),
    )


RULE = Rule("QNT001", "quantised-head", Level.WARNING, __doc__ or "", find)
