"""Tensors outside the tied groups hold the same bytes.

## What it does
Notes tensors that nothing ties and that are equal byte for byte, the transpose of one another, or equal
after a cast. Only duplicates of 64 KiB or more count, and only where they cost 1 MB or more together;
the worst come first. At the default depth, tensors with the shape of the embedding are compared;
`--depth full` compares all.

## Why it matters
Equal bytes are no proof that a tensor may go: the architecture may need both names. But they show
what a file could save: layers for multi-token prediction that carry copies of the embedding and the head, or an
embedding that was exported twice.

## Example
A checkpoint with a copy of the embedding in an extra layer:

    note STO001: 1.05 MB is stored more than once outside the tied groups:
    model.embed_tokens.weight and model.layers.61.embed_tokens.weight are equal
    byte for byte (1.05 MB)

## How to fix
Nothing needs fixing. Ask the documentation of the loader whether it can do without the copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Duplicate
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import count, size

SMALLEST = 64 * 1024
TOGETHER = 1_000_000
_LISTED = 3
_WORDS = {
    State.IDENTICAL: "equal byte for byte",
    State.TRANSPOSED: "the transpose of one another",
    State.CAST: "equal after a cast",
}


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    large = [duplicate for duplicate in inspection.duplicates if duplicate.bytes_wasted >= SMALLEST]
    wasted = sum(duplicate.bytes_wasted for duplicate in large)
    if wasted < TOGETHER:
        return
    large.sort(key=lambda duplicate: -duplicate.bytes_wasted)
    rest = len(large) - _LISTED
    more = f"; and {count(rest, 'more group')}" if rest > 0 else ""
    yield RULE.finding(
        f"{size(wasted)} {'is' if len(large) == 1 else 'are'} stored more than once outside the tied groups: "
        f"{'; '.join(map(_phrase, large[:_LISTED]))}{more}",
        dict.fromkeys(name for duplicate in large for name in duplicate.tensors),
    )


def _phrase(duplicate: Duplicate) -> str:
    word = _WORDS.get(duplicate.kind, str(duplicate.kind))
    return f"{evidence.listed(duplicate.tensors)} are {word} ({size(duplicate.bytes_wasted)})"


RULE = Rule("STO001", "duplicates", Level.NOTE, __doc__ or "", find)
