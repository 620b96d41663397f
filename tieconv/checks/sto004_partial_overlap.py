"""Tensors share a part of their bytes.

## What it does
Reports tensors of a torch file that lie in one storage and have some, but not all, of their bytes in
common: a slice of another tensor, or two that reach into each other. Names of one and the same tensor, its
transpose, and columns of one matrix that lie between one another are no overlap.

## Why it matters
safetensors refuses to save such tensors, and tools that look for shared tensors may keep the smaller one and
drop the rest. Loaders that copy each tensor into a parameter of its own take them apart: a later
change of one is then none of the other.

## Example
Two norms that were cut from one vector:

    warning STO004: model.layers.0.norm.weight and model.norm.weight share a
    part of their bytes

## How to fix
Nothing that tieconv writes takes them apart by itself, or loses one. If they are meant to be separate, save
copies: `state[name] = state[name].clone()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import count

_KINDS = frozenset({"slice", "overlap"})
_LISTED = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    if inspection.storage is None:
        return
    groups = [overlap.tensors for overlap in inspection.storage.overlaps if overlap.kind in _KINDS]
    if not groups:
        return
    rest = len(groups) - _LISTED
    more = f"; and {count(rest, 'more group')}" if rest > 0 else ""
    listed = "; ".join(evidence.listed(sorted(names)) for names in groups[:_LISTED])
    yield RULE.finding(
        f"{listed} share a part of their bytes{more}",
        [name for names in groups[:_LISTED] for name in sorted(names)[: evidence.LISTED]],
    )


RULE = Rule("STO004", "partial-overlap", Level.WARNING, __doc__ or "", find)
