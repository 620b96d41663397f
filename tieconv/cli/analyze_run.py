"""The steps of `tieconv analyze`: measure, write the reports, print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tieconv.api.analysis import analyze
from tieconv.api.reports import guard_report, write_report, write_reports
from tieconv.api.training_run import analyze_revisions
from tieconv.cli.progress import count_progress
from tieconv.cli.screen import paint, width
from tieconv.cli.streams import document, show

if TYPE_CHECKING:
    from tieconv.reporters.figure_table import FigureTable
    from tieconv.reporters.html.svg import Plot


def one_model(
    model: str,
    as_json: bool,
    page: str | None,
    figures: str | None,
    table: str | None,
    parquet: str | None,
    **options: Any,
) -> None:
    """Analyze a model. ``options`` are parameters of `api.analyze`."""
    _guard((page, table, parquet), [model], parquet)
    analysis = analyze(model, maps=page is not None or figures is not None, **options)
    if page is not None:
        from tieconv.reporters.html.analyze_page import render_analysis as html

        write_report(page, html(analysis))
    if figures is not None:
        from tieconv.reporters.html.analyze_page import plots

        measured = f"Measured on {model}"
        _write_figures(
            figures,
            [
                (plot, f"{section.legend}. {measured}" if section.legend else measured)
                for section in analysis.sections
                for plot in plots(section)
            ],
            model,
        )
    if table or parquet:
        from tieconv.reporters.figure_table import analysis_figures as rows

        _write_tables(rows(analysis), table, parquet)
    if as_json:
        document(str(analysis))
    else:
        from tieconv.reporters.text.analyze_text import render_analysis as render

        show(render(analysis, paint, width()))


def over_revisions(
    model: str,
    revisions: str,
    resume: str | None,
    as_json: bool,
    page: str | None,
    figures: str | None,
    table: str | None,
    parquet: str | None,
    **options: Any,
) -> None:
    """Analyze the revisions of a model. ``options`` are parameters of `api.analyze_revisions`."""
    _guard((page, table, parquet, resume), [model], parquet)
    with count_progress("revisions") as done:
        evolution = analyze_revisions(model, revisions, resume=resume, done=done, **options)
    if page is not None:
        from tieconv.reporters.html.analyze_page import render_evolution as html

        write_report(page, html(evolution))
    if figures is not None:
        from tieconv.reporters.html.analyze_page import curves

        names = [revision.name for revision in evolution.revisions]
        measured = f"Measured on {len(names)} revisions of {model}, from {names[0]} to {names[-1]}."
        _write_figures(figures, [(plot, measured) for plot in curves(evolution)], model)
    if table or parquet:
        from tieconv.reporters.figure_table import evolution_figures as rows

        _write_tables(rows(evolution), table, parquet)
    if as_json:
        document(str(evolution))
    else:
        from tieconv.reporters.text.analyze_text import render_evolution as render

        show(render(evolution, paint, width()))


def _guard(paths: Iterable[str | None], models: list[str], parquet: str | None) -> None:
    """Refuse reports that would replace a file of a model, and a Parquet file without its package."""
    for path in filter(None, paths):
        guard_report(path, models)
    if parquet is not None:
        from tieconv.reporters.figure_table import require_parquet

        require_parquet()


def _write_figures(directory: str, plots: list[tuple[Plot, str]], model: str) -> None:
    """Write each plot, with what was measured, to a file of ``directory``."""
    from tieconv.reporters.html.svg import svg_files

    write_reports(directory, svg_files(plots), model)


def _write_tables(figures: FigureTable, table: str | None, parquet: str | None) -> None:
    from tieconv.reporters import figure_table

    writers: tuple[tuple[str | None, Callable[[FigureTable], str | bytes]], ...] = (
        (table, figure_table.comma_separated),
        (parquet, figure_table.parquet),
    )
    for path, write in writers:
        if path is not None:
            write_report(path, write(figures))
