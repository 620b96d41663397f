"""`tieconv analyze`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.cli.analyze_run import one_model, over_revisions
from tieconv.cli.options import common_options, json_option, model_argument, name_options


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
    "--counts",
    type=click.Path(),
    metavar="FILE",
    help="Correlate row norms with token frequency. Each line of FILE has a token id and a count.",
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
    "--revisions",
    metavar="LIST",
    help="Measure these revisions of MODEL, or directories below it, over training: step1000,step2000",
)
@click.option(
    "--resume",
    type=click.Path(),
    metavar="FILE",
    help="With --revisions: save the progress to FILE, and continue from it on the next run.",
)
@click.option(
    "--html", "page", type=click.Path(), metavar="FILE", help="Also write the report, with plots, as an HTML page."
)
@click.option(
    "--figures", type=click.Path(), metavar="DIR", help="Also write each plot as an SVG file with its caption into DIR."
)
@click.option("--csv", "table", type=click.Path(), metavar="FILE", help="Also write every figure as a CSV table.")
@click.option(
    "--parquet", type=click.Path(), metavar="FILE", help="Also write that table as a Parquet file (needs pyarrow)."
)
@name_options
@json_option
@common_options
def command(model: str, revisions: str | None, resume: str | None, **options: Any) -> None:
    """Measure how the head of MODEL relates to its embedding, and whether they can be tied.

    Also reports rows without a token, zero rows, copied rows, rows that look untrained, and the bias. Each figure
    has a floor (chance or rounding) and a ceiling (the largest value to expect). n is the number of rows or tokens.

    With --revisions, reports how the tables change over training instead.

    Exits with 0, and with 2 when MODEL cannot be read.
    """
    if revisions is None:
        if resume is not None:
            raise click.UsageError("--resume needs --revisions")
        one_model(model, **options)
        return
    for name, word in (("text", "--text"), ("second", "--second"), ("counts", "--counts")):
        if options.pop(name) is not None:
            raise click.UsageError(f"{word} cannot be used with --revisions")
    if options.pop("similarity") is not None:
        raise click.UsageError("--similarity cannot be used with --revisions, which always compares the tables")
    over_revisions(model, revisions, resume, **options)
