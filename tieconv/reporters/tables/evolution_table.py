"""The figures of all revisions as a table, one figure of one revision a row."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.evolution import Evolution
from tieconv.reporters.tables.figure_table import Cell, FigureTable
from tieconv.text import shown

COLUMNS = {
    "source": str,
    "revision": str,
    "step": int,
    "identity": str,
    "figure": str,
    "value": float,
    "floor": float,
    "ceiling": float,
    "standard_error": float,
    "n": int,
    "unit": str,
    "meaning": str,
}


def figures(evolution: Evolution) -> FigureTable:
    """Return the table of an evolution."""
    return FigureTable(COLUMNS, tuple(_rows(evolution)))


def _rows(evolution: Evolution) -> Iterator[tuple[Cell, ...]]:
    for revision in evolution.revisions:
        named = (shown(revision.source, 2000), shown(revision.name), revision.step, shown(revision.identity))
        for measure in revision.measures:
            error = revision.errors.get(measure.name)
            numbers = (measure.value, measure.floor, measure.ceiling, error, measure.n)
            yield *named, shown(measure.name), *numbers, shown(measure.unit), shown(measure.says, 2000)
