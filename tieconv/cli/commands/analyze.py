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
# Options of the analysis stand together here; those of `api.analyze` reach it by their own name.
@click.option("--text", type=click.Path(), metavar="FILE", help="Run the model on this text and measure (needs torch).")
@click.option(
    "--against", type=click.Path(), metavar="UNTIED", help="Which table of this untied model the tied one is like."
)
@click.option(
    "--second", type=click.Path(), metavar="UNTIED2", help="UNTIED of another seed: how alike roles can be at all."
)
@click.option(
    "--html", "page", type=click.Path(), metavar="FILE", help="Also write the report, with plots, as one page."
)
@name_options
@json_option
@common_options
def command(model: str, as_json: bool, page: str | None, **options: Any) -> None:
    """What the embedding and the head of MODEL are to each other, and whether they may be tied.

    Also which rows have no token, which are zeros or copies, which look untrained, and what the bias is made of.
    Each figure stands between its floor, which is chance or rounding, and its ceiling, the most to be expected; n is
    the rows or tokens that it was measured over. Exits 0 whatever it finds, and 2 when MODEL cannot be read.
    """
    if page is not None:
        guard_report(page, [model])
    analysis = analyze(model, maps=page is not None, **options)
    if page is not None:
        from tieconv.reporters.html.analyze_page import render as html

        write_report(page, html(analysis))
    if as_json:
        document(str(analysis))
    else:
        from tieconv.reporters.text.analyze_text import render

        show(render(analysis, paint, width()))
