"""`tieconv dedup`."""

from __future__ import annotations

from typing import Any

import click

from tieconv import api
from tieconv.cli.options import json_option, model_argument, name_options, traceback_option, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("dedup", short_help="Store every byte-identical group once, as far as loaders restore the rest.")
@model_argument
@write_options
@name_options
@json_option
@traceback_option
def command(model: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Store every byte-identical group once, as far as loaders restore what is dropped.

    In safetensors a name is dropped where the architecture ties it and the config declares it tied; any other
    duplicate stays, and the plan says who needs it. The config is left alone.
    """
    arguments = WriteArguments(**writing)
    finish(
        api.plan_dedup(model, embed=embed, head=head, drop_other_formats=arguments.drop_other_formats),
        arguments,
        as_json=as_json,
    )
