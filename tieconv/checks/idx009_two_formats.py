"""Weights of two formats stand side by side.

## What it does
Reports a directory that holds weights in more than one format, say `model.safetensors` and `pytorch_model.bin`.

## Why it matters
transformers reads safetensors where there is a choice, other loaders the other file. If one of them is older, the two
are different models (C31). The findings here are about the format that is named first, which is the one that
transformers takes.

## Example

    warning IDX009: weights stand here as safetensors and as torch: transformers takes safetensors, other
    loaders can take torch, and the two may be different models; commands that write refuse, unless
    --drop-other-formats says to leave the other out

## How to fix
Commands that write refuse, for they would leave the other format behind as it was. With `--drop-other-formats` they
work on the format that is named first and leave the files of the other out; the plan lists each with its bytes.
`tieconv dedup --drop-other-formats` leaves them out and changes nothing else that a loader sees; `tieconv diff` of the
two weight files says first whether they are one model.
(`reindex`, which changes no tensor, needs no option.) Where other loaders need the other format, make it anew from OUT
with `tieconv convert`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "layout.two-formats"):
        way = "commands that write refuse, unless --drop-other-formats says to leave the other out"
        yield RULE.finding(f"{caution.message}; {way}", caution.tensors, remedy=remedies.dedup(inspection))


RULE = Rule("IDX009", "two-formats", Level.WARNING, __doc__ or "", find)
