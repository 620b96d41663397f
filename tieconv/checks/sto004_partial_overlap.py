"""Tensors share a part of their bytes.

## What it does
Reports tensors of a torch file that share a part of their bytes. One is a slice of the other, or their ranges overlap.
Two names of one tensor, its transpose, and interleaved columns of one matrix do not count as an overlap.

## Why it matters
safetensors refuses to save such tensors. Tools that look for shared tensors may keep the smaller one and drop the rest.
Loaders that copy each tensor into a separate parameter end the sharing. A later change of one parameter then does not
change the other.

## Example
Two norms that are slices of one vector:

    warning STO004: model.layers.0.norm.weight and model.norm.weight share a
    part of their bytes

## How to fix
No command of tieconv separates them, or loses one. To separate them, save copies: `state[name] = state[name].clone()`.
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
    """Yield at most one finding."""
    if inspection.storage is None:
        return
    groups = [overlap.tensors for overlap in inspection.storage.overlaps if overlap.kind in _KINDS]
    if not groups:
        return
    rest = len(groups) - _LISTED
    more = f". This list leaves out {count(rest, 'group')}" if rest > 0 else ""
    listed = ". ".join(f"{evidence.listed(sorted(names))} share a part of their bytes" for names in groups[:_LISTED])
    yield RULE.finding(
        f"{listed}{more}{'.' if len(groups) > 1 else ''}",
        [name for names in groups[:_LISTED] for name in sorted(names)[: evidence.LISTED]],
    )


RULE = Rule("STO004", "partial-overlap", Level.WARNING, __doc__ or "", find)
