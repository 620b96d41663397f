"""The figures of one revision: how far its tables moved, how they agree, and how long their rows are. Imports numpy."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from tieconv.analysis.alignment.compare import Untied
from tieconv.analysis.alignment.linear import Pair
from tieconv.analysis.alignment.pair_figures import Compared, compare
from tieconv.analysis.alignment.token_strings import token_bytes
from tieconv.analysis.alignment.token_tables import Array
from tieconv.analysis.alignment.token_tables import Table as TokenTable
from tieconv.analysis.evolution.revision_tables import RevisionTables
from tieconv.analysis.evolution.row_change import row_change
from tieconv.analysis.model.moments import lengths
from tieconv.analysis.model.tables import Table
from tieconv.analysis.model.tokens import Tokens
from tieconv.checkpoint.results.analysis import Measure

Figured = tuple[Measure, float]
"""A measure and its standard error, 0 if it has none."""

_SINCE = {
    "first": "mean cosine of each row with itself in the first revision, columns not centred",
    "previous": "mean cosine of each row with itself in the previous revision, columns not centred",
}


def revision_figures(
    now: RevisionTables,
    earlier: dict[str, RevisionTables],
    tokens: Tokens | None,
    *,
    exact: bool | None = None,
    untied: Untied | None = None,
) -> list[Figured]:
    """Return the figures of a revision. ``earlier`` are the tables of the ``first`` and the ``previous`` revision.

    The figures are the cosines with earlier rows, the measures of `compare` for E and U, and the mean norm. A
    tied table is compared with the tables of ``untied`` instead. Rows without a token are left out if ``tokens`` are
    known. Samples, memory and errors are those of `compare`.
    """
    every: list[Figured] = []
    for since, before in earlier.items():
        for role, table in now.tables.items():
            every.append(_change(role, table, since, before.tables.get(role), _used(tokens, table.rows)))
    for compared in _compared(now, tokens, exact, untied):
        errors = compared.standard_error
        for measure in compared.measures():
            name, pair = measure.name.rsplit(" ", 1)
            every.append((measure, errors[pair].get(name, 0.0)))
    return [*every, *(_length(role, table, _used(tokens, table.rows)) for role, table in now.tables.items())]


def _used(tokens: Tokens | None, rows: int) -> Array | None:
    return tokens.used(rows) if tokens else None


def _change(role: str, table: Table, since: str, before: Table | None, used: Array | None) -> Figured:
    name = f"cosine {role} to {since}"
    if before is None or (before.rows, before.width) != (table.rows, table.width):
        return Measure(name, None, unit="cosine", says=f"the {since} revision has no such table of this shape"), 0.0
    change = row_change(before, table, used)
    if change is None:
        return Measure(name, None, unit="cosine", says="fewer than two rows have a direction"), 0.0
    return Measure(name, change.cosine, change.floor, 1.0, change.rows, "cosine", _SINCE[since]), change.error


def _compared(
    now: RevisionTables, tokens: Tokens | None, exact: bool | None, untied: Untied | None
) -> Iterator[Compared]:
    if "U" in now.tables:
        yield compare(
            [_numbered(role, table, tokens) for role, table in now.tables.items()], {"E→U": (0, 1)}, exact=exact
        )
    elif untied is not None:
        table = now.tables["T"]
        text = token_bytes(tokens.text, table.rows) if tokens else None
        tied = TokenTable("the tied table", table.rows, table.width, table.pick_singles, text)
        pairs: dict[str, Pair] = {"E→T": (1, 0), "U→T": (2, 0)}
        yield compare([tied, untied.embedding, untied.head], pairs, exact=exact)


def _numbered(role: str, table: Table, tokens: Tokens | None) -> TokenTable:
    """Return a table whose rows with a token are named by their number."""
    used = _used(tokens, table.rows)
    names = None if used is None else [int(row) if used[row] else None for row in range(table.rows)]
    return TokenTable(f"table {role}", table.rows, table.width, table.pick_singles, names)


def _length(role: str, table: Table, used: Array | None) -> Figured:
    norms = lengths(table)
    norms = norms[np.isfinite(norms) if used is None else used & np.isfinite(norms)]
    says = "mean length (Euclidean norm) of the rows"
    if not len(norms):
        return Measure(f"mean norm {role}", None, n=0, says=says), 0.0
    return Measure(f"mean norm {role}", float(norms.mean()), n=len(norms), says=says), float(norms.std()) / sqrt(
        len(norms)
    )
