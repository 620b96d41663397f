"""A torch file stores bytes that no tensor uses.

## What it does
Reports storages of a torch file that contain 1 MB or more of unused bytes in total. The largest are first. The number
of unused bytes is a lower bound.

## Why it matters
`torch.save` writes the whole storage of a tensor, even for a slice of a few bytes. So a file can be many times larger
than its tensors. The memory that loading it needs grows too.

## Example
A slice of a larger table, saved without `.clone()`:

    warning STO003: No tensor uses 3.2 MB of the stored 3.2 MB.
    model.embed_tokens.weight uses 128 B of 3.2 MB.

## How to fix
`tieconv dedup` writes each storage from the first to the last byte that a tensor uses. Shared tensors stay shared.
`tieconv convert --to safetensors` stores only the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.storage_use import Slack
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule
from tieconv.text import count, size

TOGETHER = 1_000_000
_LISTED = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    storage = inspection.storage
    if storage is None or storage.unused < TOGETHER:
        return
    worst = sorted(storage.slack, key=lambda entry: -entry.unused)
    shown, rest = worst[:_LISTED], len(worst) - _LISTED
    more = f" This list leaves out {count(rest, 'storage')}." if rest > 0 else ""
    yield RULE.finding(
        f"No tensor uses {size(storage.unused)} of the stored {size(storage.stored)}. "
        f"{' '.join(map(_phrase, shown))}{more}",
        [name for entry in shown for name in entry.tensors[: evidence.LISTED]],
        remedy=remedies.dedup(inspection),
    )


def _phrase(entry: Slack) -> str:
    verb = evidence.verb(entry.tensors, "uses", "use")
    return f"{evidence.listed(entry.tensors)} {verb} {size(entry.stored - entry.unused)} of {size(entry.stored)}."


RULE = Rule("STO003", "storage-slack", Level.WARNING, __doc__ or "", find)
