"""A class that never ties stores no output head.

## What it does
Reports a missing output head in classes that never tie it. Examples are `KimiLinearForCausalLM`,
`MllamaForConditionalGeneration`, `ReformerModelWithLMHead` and `LukeForMaskedLM`.

## Why it matters
The flag may be true, and for some of these classes it is true by default. But the class does not read it. transformers
fills the head with random values, whatever the config says. A tool that drops the head of "tied" models damages these.

## Example
`KimiLinearForCausalLM` with `"tie_word_embeddings": true` and only the embedding stored:

    error TIE009: lm_head.weight is missing, but KimiLinearForCausalLM never
    ties it. transformers fills it with random values, whatever the config says.

## How to fix
Get the head from the checkpoint that still has it. tieconv does not write one, because nothing shows that it would
equal the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import unexplained
from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. TIE006 reports a model that also lacks the embedding."""
    head = inspection.head.output_head
    if inspection.family.tying is not Tying.NEVER or head is None or head.stored:
        return
    if inspection.head.input_embedding is None or evidence.is_quantised(inspection, head.name):
        return
    if unexplained(inspection):
        return  # TIE012 says that the head may be stored
    if inspection.checkpoint.is_embedder:
        yield RULE.finding(evidence.without_head(head.name), (head.name,), level=Level.NOTE)
        return
    yield RULE.finding(
        f"{evidence.listed([head.name])} is missing, but {evidence.label(inspection)} never ties it. "
        "transformers fills it with random values, whatever the config says.",
        (head.name,),
    )


RULE = Rule("TIE009", "never-tied", Level.ERROR, __doc__ or "", find)
