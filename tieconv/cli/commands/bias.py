"""`tieconv bias`: the commands that change the head bias alone."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.biases import plan_bias
from tieconv.cli.options import WholeGroup, common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.group("bias", cls=WholeGroup, short_help="Add, remove, unify or resize the head bias.")
def command() -> None:
    """Change the head bias. The tie does not change.

    A tied model stores the bias under its canonical name, an untied model under each name.
    """


@command.command("zero")
@model_argument
@write_options
@name_options
@json_option
@common_options
def zero(model: str, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Add an all-zero head bias. A bias that is stored already stays."""
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
    """Remove an all-zero head bias. Refuses if a value is not zero."""
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
    help="Which values to keep if the copies differ. bias: the outer name. decoder: the name beside the head's weight.",
)
@name_options
@json_option
@common_options
def unify(model: str, survivor: str | None, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Give both names of a head bias the same values, and store the names that transformers 4 and 5 need.

    Refuses when two copies differ, unless --from says which values to keep.
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
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="Length of the bias. Default: the rows of the head."
)
@name_options
@json_option
@common_options
def resize(model: str, rows: int | None, embed: str | None, head: str | None, as_json: bool, **writing: Any) -> None:
    """Make the head bias as long as the head: append zeros, or cut off zeros at the end."""
    arguments = WriteArguments(**writing)
    finish(
        plan_bias("resize", model, rows=rows, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
