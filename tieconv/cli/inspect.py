"""`tieconv inspect`."""

from __future__ import annotations

import click

from tieconv import api
from tieconv.cli.network import fetched_line, headers_bar
from tieconv.cli.options import json_option, model_argument, name_options, paint, traceback_option, width


@click.command("inspect")
@model_argument
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    default="candidates",
    show_default=True,
    help="How much to read: headers only; the tied names and tensors shaped like them; or whatever "
    "proves every duplicate.",
)
@name_options
@click.option("--consumers", "every", is_flag=True, help="Say as well what each known loader will do with MODEL.")
@click.option(
    "--for",
    "spec",
    metavar="SPEC",
    help='Only these loaders: names with or without versions, such as "vllm,transformers>=4.57".',
)
@json_option
@traceback_option
def command(
    model: str, depth: str, embed: str | None, head: str | None, every: bool, spec: str | None, as_json: bool
) -> None:
    """What MODEL stores, what is tied, what it costs, and what to run next.

    Exits 0 whatever it finds, and 2 when MODEL cannot be read.
    """
    consumers = spec if spec is not None else "all" if every else None
    with headers_bar(model) as tick:
        inspection = api.inspect(model, depth=depth, embed=embed, head=head, consumers=consumers, tick=tick)
    if as_json:
        click.echo(str(inspection))
    else:
        from tieconv.reporters.inspect_text import render

        click.echo(render(inspection, paint, width()))
    if inspection.fetched is not None:
        click.echo(fetched_line(inspection.fetched), err=True)
