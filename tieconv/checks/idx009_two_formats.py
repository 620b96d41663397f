"""The directory holds weights in two formats.

## What it does
Reports a directory that holds weights in more than one format, for example `model.safetensors` and `pytorch_model.bin`.

## Why it matters
transformers reads safetensors if it can choose, but other loaders read the other file. If one of them is older, they
are two different models. The findings of tieconv are about the format that the message gives first. transformers loads
that one.

It is a note if torch files exist beside safetensors and tieconv finds no difference. tieconv compares names, shapes,
types and the bytes of the tied tensors, and with `--depth full` all bytes. It is also a note for a GGUF file, because
no loader chooses it from a directory.

## Example

    warning IDX009: The directory holds weights as safetensors and as torch:
    transformers loads safetensors. Other loaders may load torch, which may be a
    different model.

## How to fix
Commands that write refuse the model, because the other format would stay as it was. With `--drop-other-formats` they
change the first format and leave out the files of the other one. The plan lists each file with its bytes.
`tieconv dedup --drop-other-formats` leaves them out and changes nothing else that a loader sees. Compare the two weight
files first: `tieconv diff`.

`tieconv reindex` changes no tensor, so it needs no option. If other loaders need the other format, write it again from
OUT with `tieconv convert`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence, remedies
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "layout.two-formats"):
        level, outcome = _compared(inspection)
        message = f"{evidence.capital(caution.message)}.{outcome}"
        yield RULE.finding(message, caution.tensors, level=level, remedy=remedies.dedup(inspection))


def _compared(inspection: Inspection) -> tuple[Level | None, str]:
    """Return the level and a sentence on the differences that tieconv found; both may be empty."""
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
        return None, f" {evidence.clause(different, 'differs', 'differ')}."
    return Level.NOTE, " All that tieconv compared is equal."


def _may_lack(inspection: Inspection, name: str) -> bool:
    """Return whether a model may leave out the name: it is tied, or loaders compute the buffer."""
    tied = {member.name for tie in inspection.ties if tie.declared for member in tie.members}
    return name in tied or name.endswith(_BUFFERS)


_BUFFERS = ("position_ids", "inv_freq", "masked_bias", ".attn.bias")
"""Endings of buffers that early releases of transformers wrote."""

RULE = Rule("IDX009", "two-formats", Level.WARNING, __doc__ or "", find)
