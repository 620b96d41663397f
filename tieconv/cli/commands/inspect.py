"""`tieconv inspect`."""

from __future__ import annotations

import click

from tieconv.api.evidence import inspect
from tieconv.cli.options import common_options, json_option, model_argument, name_options
from tieconv.cli.progress import fetched_line, headers_bar
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import document, show


@click.command("inspect")
@model_argument
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    default="candidates",
    show_default=True,
    help="How much to read. header: headers only. candidates: also the tied tensors and tensors of their shape. "
    "full: also every tensor that can be a duplicate.",
)
@name_options
@click.option("--consumers", "every", is_flag=True, help="Also predict what each known loader does with MODEL.")
@click.option(
    "--for",
    "spec",
    metavar="SPEC",
    help='Predict for these loaders only, such as "vllm,transformers>=4.57".',
)
@click.option(
    "--ties-only", is_flag=True, help="Skip shards without a tied name. Saves requests for large models on the Hub."
)
@click.option("--base", type=click.Path(), metavar="DIR", help="The base model of an adapter.")
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
    base: str | None,
    as_json: bool,
) -> None:
    """Show what MODEL stores, what is tied, and what to run next.

    Exits with 0, and with 2 when MODEL cannot be read. Use `tieconv check` as a gate.
    """
    consumers = spec if spec is not None else "all" if every else None
    if ties_only and consumers:
        raise click.UsageError(
            "--ties-only cannot be used with --consumers or --for, because a loader reads every shard"
        )
    if ties_only and base is not None:
        raise click.UsageError("--base cannot be used with --ties-only")
    with headers_bar(model) as tick:
        inspection = inspect(
            model, depth=depth, embed=embed, head=head, consumers=consumers, tick=tick, ties_only=ties_only, base=base
        )
    if as_json:
        document(str(inspection))
    else:
        from tieconv.reporters.text.inspect_text import render

        show(render(inspection, paint, width()))
    if inspection.fetched is not None:
        say(fetched_line(inspection.fetched))
