"""An untied model stores no output head.

## What it does
Reports a missing output head if the config, or the default of the class, says untied. A head that is stored as
quantised codes counts as stored.

It is a note in a directory of sentence-transformers (`modules.json`), whose programs use no head.

## Why it matters
transformers fills the head with random values and only prints a load report. The model then generates noise. Other
loaders fail, or tie without a message. The rule also reports T5 and similar classes with the flag false. transformers 5
ties them anyway, but transformers 4 does not.

## Example
`"tie_word_embeddings": false`, only the embedding stored:

    error TIE003: lm_head.weight is missing, but the config says untied.
    transformers fills it with random values. Run retie if the model is tied to
    model.embed_tokens.weight, or untie to store a copy of it.

## How to fix
Only you know whether the flag or the file is wrong. Usually a tool lost the flag, and the head is the embedding. Then
`tieconv retie` sets the flag to true, or `tieconv untie` stores the head as a copy. If the head was trained separately,
this checkpoint does not contain it. Look in the checkpoint that the training saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import unexplained
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import EMBEDDING
from tieconv.checks import evidence, quantised_pairs, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. TIE007 and TIE008 report heads that only some loaders tie."""
    names = unexplained(inspection)
    if names and inspection.family.mlx_names and inspection.family.output_head:
        head_name = inspection.family.output_head
        yield RULE.finding(
            f"{evidence.clause(names, 'is', 'are')} stored, but {evidence.listed([head_name])} is missing. "
            "mlx-vlm fails to load it: its class has its head under that name.",
            (head_name, *names),
        )
    if names:
        return  # TIE012 says that the head may be stored
    head_tie = evidence.head_tie(inspection)
    if head_tie is None:
        yield from _beside_codes(inspection)
        return
    if not evidence.is_missing(inspection, head_tie[1]):
        return
    tie, head = head_tie
    outcome = "transformers fills it with random values"
    if evidence.unheeded_false(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome.replace("transformers", "transformers 4"))
    elif tie in evidence.declared_untied(inspection) and not evidence.disputed(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome)


def _beside_codes(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for a quantised embedding in parts, which no group holds."""
    pair, head = quantised_pairs.tables(inspection), inspection.head.output_head
    embedding = pair.of(EMBEDDING) if pair else None
    if embedding is None or head is None or head.stored or inspection.config.effective:
        return
    if not evidence.is_quantised(inspection, head.name):
        yield _report(inspection, embedding.name, head.name, "transformers fills it with random values")


def _report(inspection: Inspection, embedding: str, head: str, outcome: str) -> Finding:
    if inspection.checkpoint.is_embedder:
        return RULE.finding(evidence.without_head(head), (head,), level=Level.NOTE)
    if inspection.family.mlx_names:
        outcome = "mlx-lm and mlx-vlm fail to load the model"
    return RULE.finding(
        f"{evidence.listed([head])} is missing, but {evidence.says(inspection, False)}. {outcome}. Run retie if the "
        f"model is tied to {evidence.listed([embedding])}, or untie to store a copy of it.",
        (head, embedding),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=_remedy(inspection),
    )


def _remedy(inspection: Inspection) -> Remedy | None:
    return remedies.retie(inspection, safe=False) or remedies.untie(inspection, safe=False)


RULE = Rule("TIE003", "missing-head", Level.ERROR, __doc__ or "", find)
