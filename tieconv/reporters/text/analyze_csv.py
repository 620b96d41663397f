"""Print the figures of an analysis as a CSV table, one figure a line."""

from __future__ import annotations

import csv
import io

from tieconv.checkpoint.results.analysis import Analysis
from tieconv.text import shown

COLUMNS = ("source", "section", "figure", "value", "floor", "ceiling", "n", "unit", "meaning")


def render(analysis: Analysis) -> str:
    """Return the table (RFC 4180, lines end in a newline). Numbers have every digit; an unknown number is empty."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    source = shown(analysis.source, 2000)
    for section in analysis.sections:
        for measure in section.measures:
            numbers = (measure.value, measure.floor, measure.ceiling, measure.n)
            texts = (shown(measure.unit), shown(measure.says, 2000))
            cells = ("" if number is None else repr(number) for number in numbers)
            writer.writerow((source, shown(section.title), shown(measure.name), *cells, *texts))
    return table.getvalue()
