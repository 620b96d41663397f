"""A table of figures, and its form as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from tieconv.checkpoint.results.analysis import Analysis, Evolution, Measure
from tieconv.checkpoint.value_type import record
from tieconv.errors import MissingPackageError
from tieconv.install import install_command
from tieconv.text import shown

Cell = str | float | int | None


@record
class FigureTable:
    """The type of each column by its name, ``str``, ``float`` or ``int``, and the rows. ``None`` is not given."""

    columns: Mapping[str, type]
    rows: tuple[tuple[Cell, ...], ...]


def comma_separated(table: FigureTable) -> str:
    """Return the table as CSV (RFC 4180, lines end in a newline).

    Numbers have every digit, and a number that was not given is an empty cell.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow("" if cell is None else cell if isinstance(cell, str) else repr(cell) for cell in row)
    return text.getvalue()


def require_parquet() -> None:
    """Raise `MissingPackageError` if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        problem = "--parquet needs the package pyarrow, which is not installed"
        raise MissingPackageError(problem, install_command("parquet"), "parquet.provider") from error


def parquet(table: FigureTable) -> bytes:
    """Return the table as a Parquet file. Raises `MissingPackageError` without pyarrow."""
    require_parquet()
    import pyarrow
    from pyarrow import parquet as writer

    kinds = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    names = list(table.columns)
    arrow = pyarrow.Table.from_pylist([dict(zip(names, row, strict=True)) for row in table.rows], schema)
    file = pyarrow.BufferOutputStream()
    writer.write_table(arrow, file)
    return bytes(file.getvalue())


ANALYSIS_COLUMNS = {
    "source": str, "section": str, "figure": str, "value": float, "floor": float, "ceiling": float, "n": int,
    "unit": str, "meaning": str,
}  # fmt: skip


def analysis_figures(analysis: Analysis) -> FigureTable:
    """Return the table of an analysis."""
    rows = [
        (shown(analysis.source, 2000), shown(section.title), *_figures(measure, measure.ceiling))
        for section in analysis.sections
        for measure in section.measures
    ]
    return FigureTable(ANALYSIS_COLUMNS, tuple(rows))


def _figures(measure: Measure, *bounds: float | None) -> tuple[Cell, ...]:
    numbers = (measure.value, measure.floor, *bounds, measure.n)
    return shown(measure.name), *numbers, shown(measure.unit), shown(measure.says, 2000)


EVOLUTION_COLUMNS = {
    "source": str, "revision": str, "step": int, "identity": str, "figure": str, "value": float, "floor": float,
    "ceiling": float, "standard_error": float, "n": int, "unit": str, "meaning": str,
}  # fmt: skip


def evolution_figures(evolution: Evolution) -> FigureTable:
    """Return the table of an evolution."""
    rows: list[tuple[Cell, ...]] = []
    for revision in evolution.revisions:
        named = (shown(revision.source, 2000), shown(revision.name), revision.step, shown(revision.identity))
        for measure in revision.measures:
            rows.append((*named, *_figures(measure, measure.ceiling, revision.errors.get(measure.name))))
    return FigureTable(EVOLUTION_COLUMNS, tuple(rows))
