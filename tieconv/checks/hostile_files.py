"""Rules about files that a loader may read in two ways."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

_MARK = "pyvenv.cfg"
"""The file that marks a Python virtual environment. Its symlinks to the interpreter are not part of the model."""


def special_files(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    companions = inspection.checkpoint.companions
    environments = tuple(name.removesuffix(_MARK) for name in companions if f"/{name}".endswith(f"/{_MARK}"))
    names = [name for name in inspection.checkpoint.special if not name.startswith(environments)]
    if names:
        yield SPECIAL_FILES.finding(
            f"{evidence.clause(names, 'is not a regular file', 'are not regular files')} inside the model directory"
        )


SPECIAL_FILES = Rule(
    "SEC001",
    "special-files",
    Level.WARNING,
    """The model directory holds an entry that is not a regular file.

## What it does
Reports FIFOs, devices, sockets, and symlinks that point outside the model directory.

## Why it matters
A loader follows a symlink to its target, on every machine that reads the model. A copy of the model follows it too. A
FIFO blocks its reader forever. None of them belongs in a checkpoint that you received from others.

## Example
A directory with a symlink to a file above it:

    warning SEC001: tokenizer.json is not a regular file inside the model
    directory

## How to fix
Remove the entry, or replace the symlink with its target. Until then, commands that write refuse the model.
""",
    special_files,
)


def repeated_key(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    for caution in evidence.cautions(inspection, "config.repeated-key"):
        yield REPEATED_KEY.finding(f"{caution.message}, others the first", caution.tensors)


REPEATED_KEY = Rule(
    "SEC002",
    "repeated-key",
    Level.WARNING,
    """The config holds a key twice.

## What it does
Reports an object in `config.json` that holds the same key more than once.

## Why it matters
JSON does not define which value counts. Python uses the last one, and other readers use the first one or fail. So a
repeated flag has two meanings. tieconv refuses a weight header or an index with a repeated key.

## Example

    warning SEC002: config.json holds the key vocab_size twice; some readers use
    the last value, others the first

## How to fix
Remove one of the two by hand. Commands that would change the flag refuse the model if the flag is the repeated key.
""",
    repeated_key,
)
