"""`tieconv inspect`."""

from __future__ import annotations

import click

from tieconv.api.evidence import inspect
from tieconv.cli.network import fetched_line, headers_bar
from tieconv.cli.options import common_options, json_option, model_argument, name_options
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import document, show


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
@click.option("--ties-only", is_flag=True, help="Leave out shards that hold no tied name: for large models on the Hub.")
@json_option
@common_options
def command(
    model: str,
    depth: str,
    embed: str | None,
    head: str | None,
    every: bool,
    spec: str | None,
    ties_only: bool,
    as_json: bool,
) -> None:
    """What MODEL stores, what is tied, what it costs, and what to run next.

    Exits 0 whatever it finds, and 2 when MODEL cannot be read.
    """
    consumers = spec if spec is not None else "all" if every else None
    if ties_only and consumers:
        raise click.UsageError("a loader reads every shard: give --ties-only, or --consumers and --for")
    with headers_bar(model) as tick:
        inspection = inspect(
            model, depth=depth, embed=embed, head=head, consumers=consumers, tick=tick, ties_only=ties_only
        )
    if as_json:
        document(str(inspection))
    else:
        from tieconv.reporters.text.inspect_text import render

        show(render(inspection, paint, width()))
    if inspection.fetched is not None:
        say(fetched_line(inspection.fetched))
