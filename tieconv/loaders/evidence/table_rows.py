"""Compare the rows of the stored tables with the config, by which a loader makes its parameters."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.architectures.vocabulary import vocabulary_rows, vocabulary_sizes
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.loaded import Cause, Refusal
from tieconv.text import shown


def wrong_rows(inspection: Inspection) -> Refusal | None:
    """Return the refusal of a table if its row count differs from each vocabulary size of the config.

    Loaders make a parameter of ``vocab_size`` rows and refuse to copy a tensor of another shape into it.
    """
    return undeclared_rows(inspection, vocabulary_rows(inspection))


def undeclared_rows(inspection: Inspection, tables: Mapping[str, int]) -> Refusal | None:
    """Return the refusal of the first of ``tables``, names with their rows, whose rows the config does not declare."""
    sizes = vocabulary_sizes(inspection)
    for name, rows in tables.items() if sizes else ():
        if rows not in sizes.values():
            path, size = next(iter(sizes.items()))
            sentence = f"{shown(name)} has {rows:,} rows, and the config declares {shown(path)} {size:,}"
            return Refusal(Cause.SHAPES, sentence, (name,))
    return None


def row_count(inspection: Inspection, name: str) -> int:
    """Return the rows of a stored tensor; 0 for a scalar."""
    return next(iter(inspection.checkpoint.tensors[name].shape), 0)
