"""Choose the ids that go through the whole graph, each as a sequence of one token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tieconv.checkpoint.results.parity_metrics import Vocabulary
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.graph.bindings import Kind, Padding

LEAST = 64
"""Ids that always go through the whole graph."""
_WORK = 2 * 10**11
"""Products of weights and ids that are computed at most, if these are more than `LEAST` ids."""
_LOGITS = 1 << 24
"""Logits that are computed at most, if these are more than `LEAST` ids."""
_ROWS = 256


def spread_ids(vocabulary: int, weights: int, seen: Vocabulary | None) -> tuple[int, ...]:
    """Return ids at even distances, as many as a few seconds allow, and ids that the first nodes treat differently.

    ``vocabulary`` is the number of ids, and ``weights`` that of the checkpoint's elements.
    """
    number = min(vocabulary, max(LEAST, min(_WORK // max(weights, 1), _LOGITS // vocabulary)))
    spread = np.unique(np.linspace(0, vocabulary - 1, number).astype(int)).tolist()
    special = [token for token in (seen.wrong + seen.special if seen else ()) if token < vocabulary][:LEAST]
    return tuple(dict.fromkeys((*spread, *special)))


def token_cells(kind: Kind, ids: tuple[int, ...], where: Padding) -> Iterator[Cell]:
    """Yield batches with one token in each row."""
    past = 1 if kind.encodes else 0
    for start in range(0, len(ids), _ROWS):
        tokens = ids[start : start + _ROWS]
        yield Cell(len(tokens), 1, past, 0, 0, where=where, tokens=tokens)
