"""The embedding has another number of rows than the config has tokens.

## What it does
Compares the rows of the input embedding, and of an untied head, with every vocabulary size in the config, and
lists all the counts where none fits.

## Why it matters
transformers stops with "size mismatch for model.embed_tokens.weight", or fills the matrix with random numbers
where it was told to ignore mismatches ("Reinit due to size mismatch"). It happens when tokens were added and
the config was not saved, or when a framework padded the vocabulary for tensor parallelism (C37, C20).

## Example
A Llama that got two tokens and kept its config:

    error VOC001: model.embed_tokens.weight has 10 rows, lm_head.weight has 10 rows; the config has vocab_size
    8: transformers stops at the size mismatch, or fills the matrix with random numbers

## How to fix
Where the extra rows are real tokens set `vocab_size` in the config; where they are padding trim embedding, head
and bias together with the tool that padded them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checks import evidence
from tieconv.checks.interface import Rule
from tieconv.text import shown

_MAX_DEPTH = 4
_USUAL = frozenset({"vocab_size", "padded_vocab_size", "decoder_vocab_size"})


def find(inspection: Inspection) -> Iterator[Finding]:
    """At most one finding."""
    sizes = dict(_sizes(inspection.checkpoint.config_values, "", 0))
    if inspection.family.knowledge is not Knowledge.TABLE or not sizes or _mixed(sizes):
        return
    tables = _tables(inspection)
    fitting = set(sizes.values())
    if all(rows in fitting for rows in tables.values()):
        return
    stored = ", ".join(f"{evidence.listed([name])} has {rows:,} rows" for name, rows in tables.items())
    declared = ", ".join(f"{shown(path)} {size:,}" for path, size in list(sizes.items())[:4])
    yield RULE.finding(
        f"{stored}; the config has {declared}: transformers stops at the size mismatch, or fills the matrix with "
        "random numbers",
        tables,
    )


def _tables(inspection: Inspection) -> dict[str, int]:
    """The embedding and the head with their rows, but for a head of which TIE010 speaks."""
    tensors = inspection.checkpoint.tensors
    head, embedding = inspection.head.output_head, inspection.head.input_embedding
    # Classes that never tie can have rows for more than the tokens that they predict.
    names = [embedding.name] if embedding and inspection.family.tying is not Tying.NEVER else []
    if head and head.stored and not _is_misshapen(inspection):
        names.append(head.name)
    # Quantised codes are packed: their rows say nothing.
    plain = [name for name in names if len(tensors[name].shape) == 2 and tensors[name].elements]
    return {name: tensors[name].shape[0] for name in plain if not evidence.is_quantised(inspection, name)}


def _is_misshapen(inspection: Inspection) -> bool:
    found = evidence.head_tie(inspection)
    if found is None:
        return False
    tie, head = found
    return head.state is State.TRANSPOSED or (tie.declared and evidence.shapes_differ(inspection, tie, head))


def _mixed(sizes: Mapping[str, int]) -> bool:
    """Whether some other vocabulary (codes of audio, additional tokens) can have rows in the same table."""
    return any(path.rpartition(".")[2] not in _USUAL for path in sizes)


def _sizes(config: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    """Every vocabulary size that the config names, by its path."""
    for key, value in config.items():
        if key.endswith("vocab_size") and type(value) is int and value > 0:
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _sizes(value, f"{prefix}{key}.", depth + 1)


RULE = Rule("VOC001", "rows", Level.ERROR, __doc__ or "", find)
