"""Weights of two formats stand side by side.

## What it does
Reports a directory that holds weights in more than one format, say `model.safetensors` and `pytorch_model.bin`.

## Why it matters
transformers reads safetensors where there is a choice, other loaders the other file. If one of them is older, the two
are different models. The findings here are about the format that is named first, which is the one that
transformers takes.

It is a note where torch files stand beside safetensors and nothing differs that was compared: names, shapes and types,
and the bytes of the tied tensors (`--depth full`: of all); and where only a GGUF file does, which no loader takes that
was given the directory.

## Example

    warning IDX009: the directory holds weights as safetensors and as torch:
    transformers loads safetensors. Other loaders may load torch, which may be a
    different model; commands that write refuse, unless --drop-other-formats
    says to leave the other out

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
        next_step = "commands that write refuse, unless --drop-other-formats says to leave the other out"
        level, outcome = _compared(inspection)
        message = f"{caution.message}{outcome}; {next_step}"
        yield RULE.finding(message, caution.tensors, level=level, remedy=remedies.dedup(inspection))


def _compared(inspection: Inspection) -> tuple[Level | None, str]:
    """The level, and what the two are to each other as far as that was compared."""
    checkpoint = inspection.checkpoint
    if checkpoint.others and all(name.endswith(".gguf") for name in checkpoint.others):
        return Level.NOTE, ""
    twins = {file.name: file for file in checkpoint.twins}
    if not twins:
        return None, ""
    names = {tensor.name for file in twins.values() for tensor in file.tensors}
    different = [shadow.name for shadow in inspection.shadows if shadow.differs and shadow.file in twins]
    different += sorted(name for name in names ^ checkpoint.tensors.keys() if not _may_lack(inspection, name))
    if different:
        return None, f": {evidence.clause(different, 'differs', 'differ')}"
    return Level.NOTE, ", though nothing that was compared differs"


def _may_lack(inspection: Inspection, name: str) -> bool:
    """Whether one model may be written with the name and without it: a tied name, or a buffer that is computed."""
    tied = {member.name for tie in inspection.ties if tie.declared for member in tie.members}
    return name in tied or name.endswith(_BUFFERS)


_BUFFERS = ("position_ids", "inv_freq", "masked_bias", ".attn.bias")
"""Endings of buffers that older releases wrote."""

RULE = Rule("IDX009", "two-formats", Level.WARNING, __doc__ or "", find)
