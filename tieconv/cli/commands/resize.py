"""`tieconv resize`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.resizing import plan_resize
from tieconv.cli.options import (
    choice_option,
    common_options,
    json_option,
    model_argument,
    name_options,
    write_options,
)
from tieconv.cli.write import WriteArguments, finish


def _target(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value not in ("rows", "config") and not (value.isascii() and value.isdecimal() and int(value[:12]) > 0):
        raise click.BadParameter("give rows, config or a number of rows")
    return value


@click.command("resize", short_help="Make config, embedding, head and head bias agree on the size of the vocabulary.")
@model_argument
@click.option(
    "--to",
    required=True,
    metavar="rows|config|N",
    callback=_target,
    help="rows: vocab_size follows the embedding. config: the tensors follow vocab_size. N: both become N.",
)
@choice_option("--fill", "zeros", "mean", help="What new rows hold; mean: the mean of the rows that are there.")
@write_options
@name_options
@json_option
@common_options
def command(model: str, to: str, fill: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Make config, embedding, head and head bias agree on the size of the vocabulary.

    `--to rows` changes config.json alone. The others add rows at the end of each table, or cut rows off that no token
    of the tokenizer has. tieconv refuses to cut where it cannot read the tokenizer.
    """
    arguments = WriteArguments(**writing)
    planned = plan_resize(model, to=to, fill=fill, embed=embed, head=head, **arguments.planning)
    finish(planned, arguments, as_json=as_json)
