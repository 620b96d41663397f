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


@click.command("convert", short_help="Convert the model to another format or shard size.")
@model_argument
@click.option(
    "--to", type=click.Choice(["safetensors", "torch"]), required=True, help="Format to write. torch: .bin files."
)
@click.option(
    "--max-shard-size",
    default="5GB",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Largest size of a file's tensors, such as 500MB or 2GiB. A larger tensor gets a separate file.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Take over the finished files of a killed run. Keep them if this run is stopped.",
)
@write_options
@name_options
@json_option
@common_options
def command(
    model: str, to: str, max_shard_size: int, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Convert the model to another format or shard size. Tied tensors stay tied.

    Names that share storage become one tensor if every loader restores the other names, otherwise separate tensors.
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
