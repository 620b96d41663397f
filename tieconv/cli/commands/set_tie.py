"""`tieconv set-tie`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.ties import plan_set_tie
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("set-tie", short_help="Write the tie flag at every level of the config; no tensor changes.")
@click.argument("flag", type=click.Choice(["true", "false", "auto"]))
@model_argument
@write_options
@click.option("--force", is_flag=True, help="Write it although a tensor is then discarded, or starts random.")
@name_options
@json_option
@common_options
def command(
    flag: str, model: str, force: bool, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Write tie_word_embeddings at every level of the config that a loader reads; no tensor changes.

    auto writes what the tensors say: true where one tensor serves all names, false where each name has its own.
    Refuses where a stored tensor would be discarded or an absent one start random, and where the flag changes the
    forward pass.
    """
    arguments = WriteArguments(**writing)
    finish(
        plan_set_tie(flag, model, force=force, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
