"""`tieconv set-tie`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.ties import plan_set_tie
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("set-tie", short_help="Write tie_word_embeddings in the config. No tensor changes.")
@click.argument("flag", type=click.Choice(["true", "false", "auto"]))
@model_argument
@write_options
@click.option(
    "--force", is_flag=True, help="Write the flag even if loaders then discard a tensor or fill one with random values."
)
@name_options
@json_option
@common_options
def command(
    flag: str, model: str, force: bool, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Write tie_word_embeddings at every level of the config that a loader reads. No tensor changes.

    auto writes true if one tensor serves all names, and false if each name has a separate tensor.
    Refuses when a loader would then discard a stored tensor or fill an absent one with random values. Also refuses
    when the flag changes the forward pass.
    """
    arguments = WriteArguments(**writing)
    finish(
        plan_set_tie(flag, model, force=force, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
