"""Compare the rows of the stored tables with the config, by which a loader makes its parameters."""

from __future__ import annotations

from tieconv.architectures.vocabulary import vocabulary_rows, vocabulary_sizes
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.loaded import Cause, Refusal
from tieconv.text import shown


def wrong_rows(inspection: Inspection) -> Refusal | None:
    """Return the refusal of a table if its row count differs from each vocabulary size of the config.

    Loaders make a parameter of ``vocab_size`` rows and refuse to copy a tensor of another shape into it.
    """
    sizes = vocabulary_sizes(inspection)
    for name, rows in vocabulary_rows(inspection).items() if sizes else ():
        if rows not in sizes.values():
            path, size = next(iter(sizes.items()))
            sentence = f"{shown(name)} has {rows:,} rows, and the config declares {shown(path)} {size:,}"
            return Refusal(Cause.SHAPES, sentence, (name,))
    return None
