"""`tieconv analyze`."""

from __future__ import annotations

from typing import Any

import click

from tieconv import api
from tieconv.cli.options import json_option, model_argument, name_options, paint, traceback_option, width


@click.command("analyze")
@model_argument
# Options of the analysis stand together here; those of `api.analyze` reach it by their own name.
@click.option("--text", type=click.Path(), metavar="FILE", help="Run the model on this text and measure (needs torch).")
@name_options
@json_option
@traceback_option
def command(model: str, as_json: bool, **options: Any) -> None:
    """What the embedding and the head of MODEL are to each other, and whether they may be tied.

    Also which rows have no token, which are zeros or copies, which look untrained, and what the bias is made of.
    Exits 0 whatever it finds, and 2 when MODEL cannot be read.
    """
    analysis = api.analyze(model, **options)
    if as_json:
        click.echo(str(analysis))
    else:
        from tieconv.reporters.analyze_text import render

        click.echo(render(analysis, paint, width()))
