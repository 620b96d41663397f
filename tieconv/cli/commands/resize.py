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


@click.command("resize", short_help="Make config, embedding, head and head bias agree on the vocabulary size.")
@model_argument
@click.option(
    "--to",
    required=True,
    metavar="rows|config|N",
    callback=_target,
    help="rows: set vocab_size to the rows of the embedding. config: resize the tensors. N: set both to N.",
)
@choice_option("--fill", "zeros", "mean", help="Values of new rows. mean: the mean of the stored rows.")
@write_options
@name_options
@json_option
@common_options
def command(model: str, to: str, fill: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Make config, embedding, head and head bias agree on the vocabulary size.

    `--to rows` changes config.json only. The others add rows at the end of each tensor, or remove rows that no token
    of the tokenizer uses. Refuses to remove rows when the tokenizer cannot be read.
    """
    arguments = WriteArguments(**writing)
    planned = plan_resize(model, to=to, fill=fill, embed=embed, head=head, **arguments.planning)
    finish(planned, arguments, as_json=as_json)
