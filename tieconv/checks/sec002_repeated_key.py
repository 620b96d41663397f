"""The config holds a key twice.

## What it does
Reports an object in `config.json` that holds the same key more than once.

## Why it matters
JSON leaves open which one counts. Python takes the last, other readers the first or none: a flag that
stands there twice means two things. In weight headers and indexes tieconv refuses to read such a file.

## Example

    warning SEC002: config.json holds the key vocab_size twice; some readers use
    the last value, others the first

## How to fix
Remove one of the two by hand. Commands that would change the flag refuse while it is the key that stands
twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "config.repeated-key"):
        yield RULE.finding(f"{caution.message}, others the first", caution.tensors)


RULE = Rule("SEC002", "repeated-key", Level.WARNING, __doc__ or "", find)
