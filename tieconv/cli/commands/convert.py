"""`tieconv convert`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.storage import plan_convert
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish
from tieconv.text import parse_size


def _size(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("convert", short_help="Store the model in another format, or in shards of another size.")
@model_argument
@click.option(
    "--to", type=click.Choice(["safetensors", "torch"]), required=True, help="The format to write; torch is .bin."
)
@click.option(
    "--max-shard-size",
    default="5GB",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Tensor bytes of one file at most, such as 500MB or 2GiB; a larger tensor gets a file of its own.",
)
@write_options
@name_options
@json_option
@common_options
def command(
    model: str, to: str, max_shard_size: int, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Store the model in another format, or in shards of another size; what ties stays tied.

    Names that share one storage become one tensor where loaders restore the others, else tensors of their own.
    """
    arguments = WriteArguments(**writing)
    planned = plan_convert(
        to,
        model,
        max_shard_size=max_shard_size,
        embed=embed,
        head=head,
        **arguments.planning,
    )
    finish(planned, arguments, as_json=as_json)
