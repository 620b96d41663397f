"""A table of figures, and its form as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from tieconv.checkpoint.results.analysis import Analysis, Evolution
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
        raise MissingPackageError(
            "--parquet needs the package pyarrow, which is not installed",
            install_command("parquet"),
            "parquet.provider",
        ) from error


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
    return FigureTable(ANALYSIS_COLUMNS, tuple(_rows(analysis)))


def _rows(analysis: Analysis) -> Iterator[tuple[Cell, ...]]:
    source = shown(analysis.source, 2000)
    for section in analysis.sections:
        for measure in section.measures:
            numbers = (measure.value, measure.floor, measure.ceiling, measure.n)
            texts = (shown(measure.unit), shown(measure.says, 2000))
            yield source, shown(section.title), shown(measure.name), *numbers, *texts


EVOLUTION_COLUMNS = {
    "source": str, "revision": str, "step": int, "identity": str, "figure": str, "value": float, "floor": float,
    "ceiling": float, "standard_error": float, "n": int, "unit": str, "meaning": str,
}  # fmt: skip


def evolution_figures(evolution: Evolution) -> FigureTable:
    """Return the table of an evolution."""
    return FigureTable(EVOLUTION_COLUMNS, tuple(_evolution_rows(evolution)))


def _evolution_rows(evolution: Evolution) -> Iterator[tuple[Cell, ...]]:
    for revision in evolution.revisions:
        named = (shown(revision.source, 2000), shown(revision.name), revision.step, shown(revision.identity))
        for measure in revision.measures:
            error = revision.errors.get(measure.name)
            numbers = (measure.value, measure.floor, measure.ceiling, error, measure.n)
            yield *named, shown(measure.name), *numbers, shown(measure.unit), shown(measure.says, 2000)
