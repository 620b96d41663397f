"""The tie flag is not true or false.

## What it does
Reports a `tie_word_embeddings`, at any level, that is a string, a number or null.

## Why it matters
transformers 5 refuses to load such a config (measured with 5.23: "expected bool, got str"). Some loaders use the truth
value, so the string `"false"` means true. Others compare it with true and false, so it means neither.

## Example

    error TIE013: tie_word_embeddings is 'true', which is not a JSON boolean.
    transformers 5 refuses to load the config. Other loaders disagree about its
    meaning.

## How to fix
`tieconv retie` or `tieconv untie` writes a boolean. The remedy is the command that keeps the stored tensors. If the
flag should have the opposite value, edit the config instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield one finding for each level whose value is not a boolean."""
    for entry in inspection.config.declared:
        if entry.present and not isinstance(entry.value, bool):
            value = "null" if entry.value is None else repr(entry.value)
            yield RULE.finding(
                f"{shown(entry.path)} is {shown(value)}, which is not a JSON boolean. "
                "transformers 5 refuses to load the config. Other loaders disagree about its meaning.",
                remedy=_remedy(inspection),
            )


def _remedy(inspection: Inspection) -> Remedy | None:
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not head_tie[0].consistent or not head_tie[0].canonical_stored:
        return None
    verb = remedies.retie if inspection.config.effective else remedies.untie
    return verb(inspection, safe=True)


RULE = Rule("TIE013", "flag-type", Level.ERROR, __doc__ or "", find)
