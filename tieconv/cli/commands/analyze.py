"""`tieconv analyze`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.analysis import analyze
from tieconv.api.reports import guard_report, write_report
from tieconv.cli.options import common_options, json_option, model_argument, name_options
from tieconv.cli.screen import paint, width
from tieconv.cli.streams import document, show


@click.command("analyze")
@model_argument
# Options of the analysis keep the names of the parameters of `api.analyze`.
@click.option(
    "--text",
    type=click.Path(),
    metavar="FILE",
    help="Run the model on this text and measure the outputs (needs torch).",
)
@click.option(
    "--against",
    type=click.Path(),
    metavar="UNTIED",
    help="Compare the tied table with both tables of this untied model.",
)
@click.option(
    "--second",
    type=click.Path(),
    metavar="UNTIED2",
    help="UNTIED trained with another seed. Gives the ceiling of each measure.",
)
@click.option(
    "--neighbours",
    type=click.Choice(["auto", "exact", "sampled"]),
    default="auto",
    show_default=True,
    help="Search the neighbours of all tokens, or of 1,000. auto: all, for up to 16,384 tokens.",
)
@click.option(
    "--similarity/--no-similarity",
    default=None,
    help="Compare the two tables of an untied MODEL with each other. Default: for tables of ordinary size.",
)
@click.option(
    "--html", "page", type=click.Path(), metavar="FILE", help="Also write the report, with plots, as an HTML page."
)
@click.option("--csv", "table", type=click.Path(), metavar="FILE", help="Also write every figure as a CSV table.")
@name_options
@json_option
@common_options
def command(model: str, as_json: bool, page: str | None, table: str | None, **options: Any) -> None:
    """Measure how the head of MODEL relates to its embedding, and whether they can be tied.

    Also reports rows without a token, zero rows, copied rows, rows that look untrained, and the bias. Each figure
    has a floor (chance or rounding) and a ceiling (the largest value to expect). n is the number of rows or tokens.

    Exits with 0, and with 2 when MODEL cannot be read.
    """
    for report in filter(None, (page, table)):
        guard_report(report, [model])
    analysis = analyze(model, maps=page is not None, **options)
    if page is not None:
        from tieconv.reporters.html.analyze_page import render as html

        write_report(page, html(analysis))
    if table is not None:
        from tieconv.reporters.text.analyze_csv import render as comma_separated

        write_report(table, comma_separated(analysis))
    if as_json:
        document(str(analysis))
    else:
        from tieconv.reporters.text.analyze_text import render

        show(render(analysis, paint, width()))
