"""The figures of an analysis as a table, one figure a row."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.analysis import Analysis
from tieconv.reporters.tables.figure_table import Cell, FigureTable
from tieconv.text import shown

COLUMNS = {
    "source": str,
    "section": str,
    "figure": str,
    "value": float,
    "floor": float,
    "ceiling": float,
    "n": int,
    "unit": str,
    "meaning": str,
}


def figures(analysis: Analysis) -> FigureTable:
    """Return the table of an analysis."""
    return FigureTable(COLUMNS, tuple(_rows(analysis)))


def _rows(analysis: Analysis) -> Iterator[tuple[Cell, ...]]:
    source = shown(analysis.source, 2000)
    for section in analysis.sections:
        for measure in section.measures:
            numbers = (measure.value, measure.floor, measure.ceiling, measure.n)
            texts = (shown(measure.unit), shown(measure.says, 2000))
            yield source, shown(section.title), shown(measure.name), *numbers, *texts
