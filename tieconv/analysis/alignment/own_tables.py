"""Compare the input embedding E and the head U of one untied model by the measures of the alignment.

Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tieconv.analysis.alignment.compare import norm_profiles
from tieconv.analysis.alignment.pair_figures import Compared, Figure, compare
from tieconv.analysis.alignment.token_tables import Table
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Table as StoredTable
from tieconv.checkpoint.results.analysis import Detail, Kinship, Section
from tieconv.checkpoint.value_type import record

TITLE = "Similarity"

PAIR = "E→U"

WORK = 10**11
"""The most products of a Gram matrix, V·d², that are computed without being asked for: some ten seconds."""

EXACTLY_RELATED = frozenset(
    {
        Kinship.ALIAS,
        Kinship.BIT_EQUAL,
        Kinship.CAST,
        Kinship.ROW_SUBSET,
        Kinship.ROW_PERMUTATION,
        Kinship.ROWS_DIFFER,
        Kinship.GAUGE,
        Kinship.SCALAR,
        Kinship.DIAGONAL,
        Kinship.ROW_SCALED,
        Kinship.LOW_RANK,
    }
)
"""Relations that answer the question already."""

_FEWEST = 32
_WORDS = {
    "procrustes": "the rows after the best rotation",
    "least squares": "the rows after the best linear map",
    "cka": "the similarities of all tokens (CKA)",
    "knn": "the nearest tokens",
    "rsa": "the similarities of random pairs (RSA)",
    "norms": "the row lengths",
}


@record
class SimilarityDetail(Detail):
    """The tables, the compared tokens, and the floors of Gaussian tables and standard errors by measure."""

    tables: dict[str, str]
    tokens: int
    left_out: int
    neighbours: int
    gaussian_floor: dict[str, dict[str, float]]
    standard_error: dict[str, dict[str, float]]

    @property
    def legend(self) -> str:
        return "; ".join(f"{key}: {name}" for key, name in self.tables.items())


def wanted(subject: Subject, kind: Kinship, similarity: bool | None) -> bool:
    """Return whether to compare the tables. Without an answer of the user, long tables are not compared."""
    head = subject.head
    rows = 0 if head is None else min(subject.embed.rows, head.rows)
    if rows < _FEWEST or similarity is False:
        return False
    return similarity is True or (kind not in EXACTLY_RELATED and rows * subject.embed.width**2 <= WORK)


def own_tables(
    subject: Subject, *, exact: bool | None = None, progress: Callable[[str], None] = lambda _: None
) -> Section:
    """Compare the two tables of an untied model, row by row. Rows without a token are left out if they are known.

    Samples, memory and errors are those of `compare`.
    """
    assert subject.head is not None
    rows = min(subject.embed.rows, subject.head.rows)
    tables = [
        _table(subject, subject.embed, "input embedding", rows),
        _table(subject, subject.head, "output embedding", rows),
    ]
    return _section(compare(tables, {PAIR: (0, 1)}, exact=exact, progress=progress))


def _table(subject: Subject, stored: StoredTable, role: str, rows: int) -> Table:
    """Return the first ``rows`` rows of a table; rows with a token are named by their number."""
    used = subject.used
    tokens = None if used is None else [int(row) if used[row] else None for row in range(rows)]
    return Table(role, rows, stored.width, stored.pick_singles, tokens)


def _section(compared: Compared) -> Section:
    joined = compared.joined
    return Section(
        TITLE,
        _sentence(compared),
        tuple(compared.measures()),
        dict(norm_profiles(compared, ("embed", "head"))),
        SimilarityDetail(
            tables=dict(zip("EU", (table.name for table in joined.tables), strict=True)),
            tokens=joined.count,
            left_out=joined.dropped,
            neighbours=compared.views[0].neighbours.shape[1],
            gaussian_floor=compared.gaussian_floor,
            standard_error=compared.standard_error,
        ),
        "measured; chance is the floor of each figure, with the tokens of one table permuted",
    )


def _sentence(compared: Compared) -> str:
    """Return the sentence: what the tables share above chance, and the two figures that are cited most."""
    row = compared.figures[PAIR]
    above = [words for name, words in _WORDS.items() if _above(row[name], compared.joined.count)]
    knn, turned = row["knn"], row["procrustes"]
    assert knn.value is not None and turned.value is not None
    figures = (
        f"They share {knn.value:.2%} of a token's nearest tokens (chance {knn.floor:.2%}). After the best rotation "
        f"the mean cosine is {turned.value:.3f} (chance {turned.floor:.3f})."
    )
    if not above:
        return f"The two tables agree no more than chance. {figures}"
    return f"The two tables agree more than chance in {_and(above)}. {figures}"


def _above(figure: Figure, tokens: int) -> bool:
    """Return whether a figure is above its floor by three standard errors of the figure and of the permutation."""
    error = float(np.hypot(figure.error, 1 / np.sqrt(tokens)))
    return figure.value is not None and figure.value - figure.floor > 3 * error


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
