"""The tie flag is not true or false.

## What it does
Reports a `tie_word_embeddings` that is a string, a number or null instead of a JSON boolean, at any
level.

## Why it matters
transformers 5 refuses to load such a config (measured with 5.23: "expected bool, got str"). Other
readers go by truth, by which the string `"false"` means true, or by comparison, by which it means
neither.

## Example

    error TIE013: tie_word_embeddings is 'true', which is neither true nor
    false: transformers 5 refuses to load the config, and other readers disagree
    on what it means

## How to fix
`tieconv retie` or `tieconv untie` writes a boolean; the remedy names the one that keeps what is stored.
Where the value was meant to be the opposite, edit the config instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """One finding for each level whose value is of another type."""
    for entry in inspection.config.declared:
        if entry.present and not isinstance(entry.value, bool):
            value = "null" if entry.value is None else repr(entry.value)
            yield RULE.finding(
                f"{shown(entry.path)} is {shown(value)}, which is neither true nor false: "
                "transformers 5 refuses to load the config, and other readers disagree on what it means",
                remedy=_remedy(inspection),
            )


def _remedy(inspection: Inspection) -> Remedy | None:
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not head_tie[0].consistent or not head_tie[0].canonical_stored:
        return None
    verb = remedies.retie if inspection.config.effective else remedies.untie
    return verb(inspection, safe=True)


RULE = Rule("TIE013", "flag-type", Level.ERROR, __doc__ or "", find)
