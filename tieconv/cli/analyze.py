"""`tieconv analyze` and `demo`: measure how head and embedding relate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tieconv.api import guard_report, write_bytes, write_reports, write_text
from tieconv.api.analysis import analyze, analyze_revisions, demo_table, run_demo
from tieconv.cli.options import choice_option, common_options, json_option, model_argument, name_options, path_option
from tieconv.cli.screen import count_progress, document, echo, paint, say, show, width
from tieconv.text import path_word


@click.command("analyze")
@model_argument
# Options of the analysis keep the names of the parameters of `api.analyze`.
@path_option("--text", help="Run the model on this text and measure the outputs (needs torch).")
@path_option("--against", metavar="UNTIED", help="Compare the tied table with both tables of this untied model.")
@path_option("--second", metavar="UNTIED2", help="UNTIED trained with another seed. Gives the ceiling of each measure.")
@path_option("--counts", help="Correlate row norms with token frequency. Each line of FILE has a token id and a count.")
@click.option(
    "--exact/--sampled",
    default=None,
    help="Measure all tokens, or samples with intervals. Default: all, for up to 16,384 tokens.",
)
@choice_option("--neighbours", "auto", "exact", "sampled", help="Another spelling of --exact and --sampled.")
@click.option(
    "--similarity/--no-similarity",
    default=None,
    help="Compare the two tables of an untied MODEL with each other. Default: for tables of ordinary size.",
)
@click.option(
    "--revisions",
    metavar="LIST",
    help="Measure these revisions of MODEL, or directories below it, over training: step1000,step2000",
)
@path_option("--resume", help="With --revisions: save the progress to FILE, and continue from it on the next run.")
@path_option("--html", "page", help="Also write the report, with plots, as an HTML page.")
@path_option("--figures", metavar="DIR", help="Also write each plot as an SVG file with its caption into DIR.")
@path_option("--csv", "table", help="Also write every figure as a CSV table.")
@path_option("--parquet", help="Also write that table as a Parquet file (needs pyarrow).")
@name_options
@json_option
@common_options
def analyze_command(model: str, revisions: str | None, as_json: bool, **options: Any) -> None:
    """Measure how the head of MODEL relates to its embedding, and whether they can be tied.

    Also reports rows without a token, zero rows, copied rows, rows that look untrained, and the bias. Each figure
    has a floor (chance or rounding) and a ceiling (the largest value to expect). n is the number of rows or tokens.

    With --revisions, reports how the tables change over training instead.

    Exits with 0, and with 2 when MODEL cannot be read.
    """
    page, figures, table, parquet = (options.pop(name) for name in ("page", "figures", "table", "parquet"))
    resume = options.pop("resume")
    _check_usage(revisions, resume, options)
    for path in filter(None, (page, table, parquet, resume)):
        guard_report(path, [model])
    if parquet is not None:
        from tieconv.reporters.figure_table import require_parquet

        require_parquet()
    result: Any
    if revisions is None:
        result = analyze(model, maps=page is not None or figures is not None, **options)
    else:
        with count_progress("revisions") as done:
            result = analyze_revisions(model, revisions, resume=resume, done=done, **options)
    if page is not None:
        from tieconv.reporters.html import analyze_page

        html = analyze_page.render_analysis if revisions is None else analyze_page.render_evolution
        write_text(page, html(result))
    if figures is not None:
        _write_figures(figures, result, model, over_time=revisions is not None)
    if table or parquet:
        from tieconv.reporters import figure_table

        rows = (figure_table.analysis_figures if revisions is None else figure_table.evolution_figures)(result)
        if table:
            write_text(table, figure_table.comma_separated(rows))
        if parquet:
            write_bytes(parquet, figure_table.parquet(rows))
    if as_json:
        document(str(result))
    else:
        from tieconv.reporters.text import analyze_text

        text = analyze_text.render_analysis if revisions is None else analyze_text.render_evolution
        show(text(result, paint, width()))


def _check_usage(revisions: str | None, resume: str | None, options: dict[str, Any]) -> None:
    """Raise `click.UsageError` for options of the other kind of analysis, and remove those that it does not have."""
    if revisions is None:
        if resume is not None:
            raise click.UsageError("--resume needs --revisions")
        return
    for name in ("text", "second", "counts"):
        if options.pop(name) is not None:
            raise click.UsageError(f"--{name} cannot be used with --revisions")
    if options.pop("similarity") is not None:
        raise click.UsageError("--similarity cannot be used with --revisions, which always compares the tables")


def _write_figures(directory: str, result: Any, model: str, *, over_time: bool) -> None:
    """Write each plot, with what was measured, to a file of ``directory``."""
    from tieconv.reporters.html.analyze_page import curves, plots
    from tieconv.reporters.html.svg import svg_files

    if over_time:
        names = [revision.name for revision in result.revisions]
        measured = f"Measured on {len(names)} revisions of {model}, from {names[0]} to {names[-1]}."
        captioned = [(plot, measured) for plot in curves(result)]
    else:
        measured = f"Measured on {model}"
        captioned = [
            (plot, f"{section.legend}. {measured}" if section.legend else measured)
            for section in result.sections
            for plot in plots(section)
        ]
    write_reports(directory, svg_files(captioned), model)


@click.command("demo")
@path_option(
    "-o",
    "--output",
    metavar="OUT",
    default="tieconv-demo",
    show_default=True,
    help="Write the models and the report to OUT, which must not exist.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=1000, show_default=True, help="Training steps for each model."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the text and the weights."
)
@json_option
@common_options
def demo_command(output: str, as_json: bool, **options: Any) -> None:
    """Train a small model tied and untied, and show what tying changes.

    Takes two minutes on one core and needs tieconv[torch]. Writes three models (tied, untied, and untied with another
    seed), report.html and report.json. Every other command reads these models. Prints each measure with its floor and
    ceiling.
    """
    with count_progress("training") as done:
        result = run_demo(output, done=done, **options)
    document(str(result)) if as_json else echo(demo_table(result))
    page, tied = (path_word(str(Path(output) / name)) for name in ("report.html", "tied"))
    say(f"next: open {page}, or tieconv inspect {tied}")
