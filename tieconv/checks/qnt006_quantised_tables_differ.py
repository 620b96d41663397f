"""A tied model has a quantised matrix and a different second one.

## What it does
Reports a tied model whose embedding is quantised, if a part of the stored head differs. The head may be float, may have
other codes, or may only round to the same values. It also reports a quantised head beside a float embedding, if more
than quantisation separates the two.

## Why it matters
One parameter cannot have two values. Loaders fail, or they silently drop the head or the codes. Each loader then
computes different logits from the same files.

## Example
`"tie_word_embeddings": true`, and two separately quantised matrices:

    error QNT006: the quantised lm_head.weight differs from
    model.embed_tokens.weight (the dequantised values differ), but the config
    says tied. Loaders fail, or they lose a matrix.

## How to fix
`tieconv set-tie false` keeps both matrices and makes the config say untied. `tieconv retie` refuses, because it would
lose the values of the head.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairState
from tieconv.checks import evidence, quantised_pairs
from tieconv.checks.interface import Rule

_WORDS = {
    PairState.EQUAL_VALUES: "only the dequantised values are equal",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is close to a quantised copy of the other",
    PairState.DIFFERENT: "the dequantised values differ",
}


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. QNT001 reports a quantised head that is a copy of a float embedding."""
    tables = quantised_pairs.tables(inspection)
    relation = tables.relation if tables is not None else None
    if relation is None or tables is None or relation.state not in _WORDS or not inspection.config.effective:
        return
    if tables.of(EMBEDDING) is None and relation.state is not PairState.DIFFERENT:
        return
    embedding, head = quantised_pairs.names(inspection)
    kind = "quantised" if tables.of(HEAD) else "float"
    yield RULE.finding(
        f"the {kind} {evidence.listed([head])} differs from {evidence.listed([embedding])} "
        f"({_WORDS[relation.state]}), but {evidence.says(inspection, True)}. Loaders fail, or they lose a matrix.",
        (embedding, head),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=quantised_pairs.remedy(inspection, "set-tie false", *quantised_pairs.LOADED_UNTIED),
    )


RULE = Rule("QNT006", "quantised-tables-differ", Level.ERROR, __doc__ or "", find)
