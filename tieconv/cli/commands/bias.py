"""`tieconv bias`: one command for each thing that can be done to the head bias alone."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.biases import plan_bias
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


class _Whole(click.Group):
    """A group that lists its commands with their whole sentences, as `tieconv --help` does."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in self.commands.items()])


@click.group("bias", cls=_Whole, short_help="Add, remove, unify or resize the head bias; the tie stays as it is.")
def command() -> None:
    """Change the head bias and leave the tie as it is.

    Names follow from how loaders read the config: the canonical one while the model is tied, each name once it
    is not.
    """


@command.command("zero")
@model_argument
@write_options
@name_options
@json_option
@common_options
def zero(model: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Add an all-zero head bias where there is none; one that is there stays."""
    arguments = WriteArguments(**writing)
    finish(
        plan_bias("zero", model, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )


@command.command("strip")
@model_argument
@write_options
@name_options
@json_option
@common_options
def strip(model: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Remove an all-zero head bias; one that is not is refused."""
    arguments = WriteArguments(**writing)
    finish(
        plan_bias("strip", model, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )


@command.command("unify")
@model_argument
@write_options
@click.option(
    "survivor",
    "--from",
    type=click.Choice(["bias", "decoder"]),
    help="Whose values stay where the copies differ: the outer name's (bias), or those beside the head's weight "
    "(decoder).",
)
@name_options
@json_option
@common_options
def unify(model: str, survivor: str | None, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Give both names of a head bias one value, and store the names that transformers 4 and 5 need.

    Refuses where two copies differ, unless --from says whose values stay.
    """
    arguments = WriteArguments(**writing)
    finish(
        plan_bias("unify", model, survivor=survivor, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )


@command.command("resize")
@model_argument
@write_options
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Entries; those of the head where left out.")
@name_options
@json_option
@common_options
def resize(model: str, rows: int | None, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Make the head bias as long as the head: zeros at its end, or an all-zero end cut off."""
    arguments = WriteArguments(**writing)
    finish(
        plan_bias("resize", model, rows=rows, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
