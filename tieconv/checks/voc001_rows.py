"""The embedding has another number of rows than the config has tokens.

## What it does
Compares the rows of the input embedding, and of an untied head, with every vocabulary size in the config. Where none
fits, it reads the tokenizer too and lists all the counts.

## Why it matters
transformers stops with "size mismatch for model.embed_tokens.weight", or fills the matrix with random numbers
where it was told to ignore mismatches ("Reinit due to size mismatch"). It happens when tokens were added and
the config was not saved, or when a framework padded the vocabulary for tensor parallelism.

## Example
A Llama that got two tokens and kept its config:

    error VOC001: config.json is too small: vocab_size 8,
    model.embed_tokens.weight 10 rows, lm_head.weight 10 rows, no tokenizer
    read. transformers cannot load the model, or it fills the matrices with
    random numbers.

## How to fix
`tieconv resize --to rows` sets `vocab_size` to the rows that are stored; no tensor changes. Where the tensors are too
short for the tokenizer, `tieconv resize --to N --fill mean` adds rows (review first: changes the model's outputs).
Rows that no token has are cut off by `tieconv resize --to config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.architectures.vocabulary import sizes_disagree, vocabulary_rows, vocabulary_sizes
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import remedies
from tieconv.checks.interface import Rule
from tieconv.text import shown


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    if not sizes_disagree(inspection):
        return
    sizes, tables = vocabulary_sizes(inspection), vocabulary_rows(inspection)
    declared = ", ".join(f"{shown(path)} {size:,}" for path, size in list(sizes.items())[:4])
    stored = ", ".join(f"{shown(name)} {rows:,} rows" for name, rows in tables.items())
    used = inspection.tokenizer_rows
    unread = inspection.tokenizer_unread or "no tokenizer read"
    tokenizer = unread if used is None else f"tokenizer {used:,} tokens"
    yield RULE.finding(
        f"{_wrong(inspection, sizes, tables)}: {declared}, {stored}, {tokenizer}. transformers cannot load the model, "
        "or it fills the matrices with random numbers.",
        tables,
        remedy=_remedy(inspection, tables),
    )


def _wrong(inspection: Inspection, sizes: Mapping[str, int], tables: Mapping[str, int]) -> str:
    """Which side is too short or too long."""
    used, rows = inspection.tokenizer_rows, set(tables.values())
    if len(rows) > 1:
        return "embedding and head differ in their rows"
    (stored,) = rows
    if used is not None and used > stored:
        return "the tables are too short"
    document = inspection.checkpoint.config.name if inspection.checkpoint.config else "the config"
    return f"{shown(document)} is too {'small' if stored > max(sizes.values()) else 'large'}"


def _remedy(inspection: Inspection, tables: Mapping[str, int]) -> Remedy | None:
    used, rows = inspection.tokenizer_rows, set(tables.values())
    longest = max(rows)
    if len(rows) > 1 or (used is not None and used > longest):
        most = max(longest, used or 0)
        return remedies.resize(inspection, ("--to", str(most)), ("--fill", "mean"), safe=False)
    return remedies.resize(inspection, ("--to", "rows"), safe=True)


RULE = Rule("VOC001", "rows", Level.ERROR, __doc__ or "", find)
