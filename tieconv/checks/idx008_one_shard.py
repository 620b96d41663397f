"""Only one shard of a model is inspected.

## What it does
Notes that the file given is one of several numbered shards, and that the config beside it was therefore
not used.

## Why it matters
The config describes the whole model: held against one shard, every tensor of the others would be
missing.

## Example

    note IDX008: model-00002-of-00002.safetensors is one shard of a model;
    inspect its directory

## How to fix
Give the directory instead of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    for caution in evidence.cautions(inspection, "layout.one-shard"):
        yield RULE.finding(caution.message, caution.tensors)


RULE = Rule("IDX008", "one-shard", Level.NOTE, __doc__ or "", find)
