"""Find tokens that look untrained. The indicator depends on whether the table is input- or output-shaped.

In an output table every token changes every row, so rows that were never the answer become similar. The indicator is
the cosine distance to the mean of the unused rows. In an independent input table a row changes only when the model
reads its token. The indicator is the length of the row (Land and Bartolo 2024, arXiv 2405.05417). The relation of the
stored tables decides, not the config: an untied copy of a tied table is still output-shaped.
"""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.moments import SQUARED
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.checkpoint.value_type import record

REFERENCE = 8
"""The fewest unused rows for a comparison."""

HALF = 0.5
"""Share of flagged tokens above which the indicator says nothing about this table."""

QUANTILE = 0.95
"""Share of the unused rows that the threshold keeps."""


@record
class Flagged:
    """``score`` of each row (V,), small for rows that look untrained, and the tokens at or below ``threshold``."""

    indicator: str
    score: Array
    threshold: float
    rows: Array
    reference: int
    tokens: int

    @property
    def distinct(self) -> bool:
        """Whether the indicator separates the unused rows. Otherwise it flags about `QUANTILE` of all tokens."""
        return len(self.rows) <= HALF * self.tokens


def find(table: Table, norms: Array, used: Array, *, output: bool) -> Flagged | None:
    """Return the tokens whose rows look like unused rows, or ``None`` if there are too few unused rows."""
    unused = np.flatnonzero(~used & (norms < SQUARED[1]))
    if len(unused) < REFERENCE:
        return None
    score, own = _output_score(table, norms, unused) if output else (norms, norms[unused])
    threshold = float(np.quantile(own, QUANTILE))
    rows = np.flatnonzero(used & (score <= threshold))
    name = "distance to the unused rows" if output else "length of the row"
    return Flagged(name, score, threshold, rows[np.argsort(score[rows], kind="stable")], len(unused), int(used.sum()))


def _output_score(table: Table, norms: Array, unused: Array) -> tuple[Array, Array]:
    """Return the distance of each row to the mean unused row, and of each unused row to the others' mean.

    The distance is the cosine distance, or the Euclidean one if the unused rows are zero and have no direction.
    """
    alive = unused[norms[unused] > SQUARED[0]]
    by_cosine = len(alive) >= REFERENCE
    reference = table.pick(alive if by_cosine else unused)
    total, count = reference.sum(0), len(reference)
    score = np.zeros(table.rows)
    for start, stop in spans(table.rows, table.width):
        score[start:stop] = _distance(table.values(start, stop), total / count, by_cosine)
    own = [_distance(row[None], (total - row) / (count - 1), by_cosine)[0] for row in reference]
    return score, np.array(own)


def _distance(rows: Array, mean: Array, by_cosine: bool) -> Array:
    with np.errstate(all="ignore"):
        if not by_cosine:
            distances: Array = np.linalg.norm(rows - mean, axis=1)
        else:
            distances = 1 - rows @ mean / (np.linalg.norm(rows, axis=1) * np.linalg.norm(mean))
    return np.nan_to_num(distances, nan=np.inf)
