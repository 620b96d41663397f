"""Tensors drag along bytes that no tensor uses.

## What it does
Reports storages of a torch file of which the tensors use only a part, where 1 MB or more is left over in
all. The worst come first; what is counted as unused is a lower bound.

## Why it matters
`torch.save` writes the whole storage behind a tensor, also for a slice of a few bytes: a file can be many
times as large as its tensors, and so is the memory that loading it takes.

## Example
A slice of a larger table, saved without a copy of its own:

    warning STO003: 3.2 MB of 3.2 MB are stored for no tensor:
    model.embed_tokens.weight uses 128 B of 3.2 MB

## How to fix
`tieconv dedup` writes each storage from the first to the last byte that a tensor uses, and keeps what is
shared shared; `tieconv convert --to safetensors` stores the tensors alone.
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
    """At most one finding."""
    storage = inspection.storage
    if storage is None or storage.unused < TOGETHER:
        return
    worst = sorted(storage.slack, key=lambda entry: -entry.unused)
    shown, rest = worst[:_LISTED], len(worst) - _LISTED
    more = f"; and {count(rest, 'more storage')}" if rest > 0 else ""
    yield RULE.finding(
        f"{size(storage.unused)} of {size(storage.stored)} are stored for no tensor: "
        f"{'; '.join(map(_phrase, shown))}{more}",
        [name for entry in shown for name in entry.tensors[: evidence.LISTED]],
        remedy=remedies.dedup(inspection),
    )


def _phrase(entry: Slack) -> str:
    verb = evidence.verb(entry.tensors, "uses", "use")
    return f"{evidence.listed(entry.tensors)} {verb} {size(entry.stored - entry.unused)} of {size(entry.stored)}"


RULE = Rule("STO003", "storage-slack", Level.WARNING, __doc__ or "", find)
