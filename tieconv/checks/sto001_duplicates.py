"""Tensors outside the tied groups hold the same bytes.

## What it does
Notes tensors that no tie connects and that hold the same values. They are byte-identical, transposed, or equal after a
cast. The rule counts duplicates of 64 KiB or more, and reports them from 1 MB together. The largest are first. The
default depth compares tensors with the shape of the embedding; `--depth full` compares all.

## Why it matters
Equal bytes do not prove that a tensor may go, because the architecture may need both names. But they show what the file
could save. Examples are an embedding that was exported twice, and copies in layers for multi-token prediction.

## Example
A checkpoint with a copy of the embedding in an extra layer:

    note STO001: 1.05 MB is stored more than once outside the tied groups.
    model.embed_tokens.weight and model.layers.61.embed_tokens.weight are
    byte-identical (1.05 MB).

## How to fix
Nothing needs a fix. The documentation of the loader may say whether it can work without the copies.
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
    State.IDENTICAL: "byte-identical",
    State.TRANSPOSED: "transposed copies",
    State.CAST: "equal after a cast",
}


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    large = [duplicate for duplicate in inspection.duplicates if duplicate.bytes_wasted >= SMALLEST]
    wasted = sum(duplicate.bytes_wasted for duplicate in large)
    if wasted < TOGETHER:
        return
    large.sort(key=lambda duplicate: -duplicate.bytes_wasted)
    rest = len(large) - _LISTED
    more = f" This list leaves out {count(rest, 'group')}." if rest > 0 else ""
    yield RULE.finding(
        f"{size(wasted)} {'is' if len(large) == 1 else 'are'} stored more than once outside the tied groups. "
        f"{' '.join(map(_phrase, large[:_LISTED]))}{more}",
        dict.fromkeys(name for duplicate in large for name in duplicate.tensors),
    )


def _phrase(duplicate: Duplicate) -> str:
    word = _WORDS.get(duplicate.kind, str(duplicate.kind))
    return f"{evidence.listed(duplicate.tensors)} are {word} ({size(duplicate.bytes_wasted)})."


RULE = Rule("STO001", "duplicates", Level.NOTE, __doc__ or "", find)
