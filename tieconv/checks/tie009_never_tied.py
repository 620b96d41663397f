"""A class that never ties stores no output head.

## What it does
Reports a missing output embedding in the classes that always have one of their own, such as
`KimiLinearForCausalLM`, `MllamaForConditionalGeneration`, `ReformerModelWithLMHead` or
`LukeForMaskedLM`.

## Why it matters
The flag may say true, and for some of these classes it does by default; the class does not read it.
transformers fills the head with random numbers whatever the config says. A tool that drops the
head of "tied" models ruins these.

## Example
`KimiLinearForCausalLM` with `"tie_word_embeddings": true` and only the embedding stored:

    error TIE009: lm_head.weight is not stored, and KimiLinearForCausalLM never
    ties it: transformers fills it with random numbers whatever the config says

## How to fix
Get the head from the checkpoint that it was dropped from. tieconv does not write one: nothing says that
it would be the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding; TIE006 reports a model without embedding as well."""
    head = inspection.head.output_head
    if inspection.family.tying is not Tying.NEVER or head is None or head.stored:
        return
    if inspection.head.input_embedding is None or evidence.is_quantised(inspection, head.name):
        return
    yield RULE.finding(
        f"{evidence.listed([head.name])} is not stored, and {evidence.label(inspection)} never ties it: "
        "transformers fills it with random numbers whatever the config says",
        (head.name,),
    )


RULE = Rule("TIE009", "never-tied", Level.ERROR, __doc__ or "", find)
