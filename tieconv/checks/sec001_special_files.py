"""The model directory holds something that is no regular file.

## What it does
Reports links that lead outside the directory, FIFOs, devices and sockets.

## Why it matters
A loader, or a copy of the model, follows a link to whatever it names, on whichever machine it is read; a
FIFO stops a reader for ever. None of them belongs in a checkpoint that came from somewhere else.

## Example
A directory with a link to a file above it:

    warning SEC001: tokenizer.json is no regular file of the model: a link that
    leads outside, a FIFO, a device or a socket

## How to fix
Remove the entry, or replace it by the file that it stands for. Commands that write refuse until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

_MARK = "pyvenv.cfg"
"""The file of a Python virtual environment, whose links to the interpreter are not the model's."""


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    companions = inspection.checkpoint.companions
    environments = tuple(name.removesuffix(_MARK) for name in companions if f"/{name}".endswith(f"/{_MARK}"))
    names = [name for name in inspection.checkpoint.special if not name.startswith(environments)]
    if names:
        yield RULE.finding(
            f"{evidence.clause(names, 'is no regular file', 'are no regular files')} of the model: "
            f"a link that leads outside, a FIFO, a device or a socket"
        )


RULE = Rule("SEC001", "special-files", Level.WARNING, __doc__ or "", find)
