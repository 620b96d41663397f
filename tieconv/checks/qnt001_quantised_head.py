"""A tied model stores its head as quantised codes.

## What it does
Reports a tied model with a head of codes and scales, but with a float embedding. If more than quantisation separates
the two matrices, QNT006 reports them.

## Why it matters
The same matrix then has two encodings, and the loader decides which one gives the logits. Loaders that tie use the
embedding and drop the codes. Loaders that read the codes use them. Some leave the head without values and generate
"!!!!".

## Example
`"tie_word_embeddings": true`, and a head that was quantised separately:

    warning QNT001: lm_head.weight is stored as quantised codes
    (lm_head.qweight), but the config says tied. The loader decides whether the
    codes or model.embed_tokens.weight give the logits.

## How to fix
`tieconv set-tie false` keeps both matrices and makes the config say untied. Or quantise again, and leave the head out
(`lm_head: false`, or the list of modules to ignore). `tieconv inspect` says whether the codes are a quantised copy of
the embedding. No command drops the codes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised import parametrised_parts, quantised_twin
from tieconv.checkpoint.quantised_matrix import FaultKind, PairState
from tieconv.checks import evidence, quantised_pairs
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    head_tie, embedding = evidence.head_tie(inspection), inspection.head.input_embedding
    if head_tie is None or embedding is None or embedding.dtype not in FLOATS or not head_tie[0].declared:
        return
    tensors = inspection.checkpoint.tensors
    codes = quantised_twin(head_tie[1].name, tensors)
    if codes is None or quantised_twin(embedding.name, tensors) or _is_reported(inspection):
        return
    yield RULE.finding(
        f"{evidence.listed([head_tie[1].name])} is stored as quantised codes ({evidence.listed([codes])}), but "
        f"{evidence.says(inspection, True)}. The loader decides whether the codes or "
        f"{evidence.listed([embedding.name])} give the logits.",
        (head_tie[1].name, codes, embedding.name),
        level=evidence.certain(inspection, Level.WARNING),
        remedy=quantised_pairs.remedy(inspection, "set-tie false", *quantised_pairs.LOADED_UNTIED),
    )


def _is_reported(inspection: Inspection) -> bool:
    """Return whether QNT003 (only scales are stored), QNT006 (another matrix) or HED002 reports the head."""
    tables = inspection.quantised
    if tables is None:
        return False
    differs = tables.relation is not None and tables.relation.state is PairState.DIFFERENT
    return (
        any(map(parametrised_parts, tables.matrices))
        or any(tables.faults(FaultKind.NO_CODES))
        or (differs and quantised_pairs.tables(inspection) is not None)
    )


RULE = Rule("QNT001", "quantised-head", Level.WARNING, __doc__ or "", find)
