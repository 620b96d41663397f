"""`tieconv retie`."""

from __future__ import annotations

from typing import Any

import click

from tieconv import api
from tieconv.cli.options import (
    bias_option,
    json_option,
    model_argument,
    name_options,
    traceback_option,
    write_options,
)
from tieconv.cli.write import WriteArguments, finish


@click.command("retie")
@model_argument
@write_options
@bias_option
@click.option("survivor", "--from", type=click.Choice(["embed", "head"]), help="Whose values --force keeps.")
@click.option("--force", is_flag=True, help="Tie tensors that are not bit-equal; needs --from.")
@name_options
@json_option
@traceback_option
def command(
    model: str,
    bias: str,
    survivor: str | None,
    force: bool,
    embed: str | None,
    head: str | None,
    as_json: bool,
    **writing: Any,
) -> None:
    """Drop the redundant copy, keep the canonical name, set the config to tied.

    Refuses where the tensors are not bit-equal, unless --from and --force say whose values to keep.
    """
    if force != (survivor is not None):
        raise click.UsageError("--force and --from embed|head go together: say whose values survive")
    arguments = WriteArguments(**writing)
    planned = api.plan_retie(
        model,
        bias=bias,
        survivor=survivor,
        force=force,
        embed=embed,
        head=head,
        drop_other_formats=arguments.drop_other_formats,
    )
    finish(planned, arguments, as_json=as_json)
