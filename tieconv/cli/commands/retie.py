"""`tieconv retie`."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click

from tieconv.api.plans.ties import plan_retie
from tieconv.cli.options import bias_option, common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("retie")
@model_argument
@write_options
@bias_option
@click.option(
    "survivor",
    "--from",
    "--survivor",
    type=click.Choice(["embed", "head", "mean"]),
    help="Whose values --force or --max-kl keeps.",
)
@click.option("--force", is_flag=True, help="Tie tensors that are not bit-equal; needs --from.")
@click.option(
    "--max-kl",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Tie tensors that are not bit-equal where the probabilities provably move by at most X nats a token; "
    "needs --from.",
)
@click.option("--text", type=click.Path(), metavar="FILE", help="With --max-kl: measured on this text (needs torch).")
@click.option(
    "--fold-norm",
    is_flag=True,
    help="Undo a norm that was folded into the head: its factors go back into the last norm, where that is exact.",
)
@name_options
@json_option
@common_options
def command(
    model: str,
    bias: str,
    survivor: str | None,
    force: bool,
    max_kl: float | None,
    text: str | None,
    fold_norm: bool,
    embed: str | None,
    head: str | None,
    as_json: bool,
    **writing: Any,
) -> None:
    """Drop the redundant copy, keep the canonical name, set the config to tied.

    Refuses where the tensors are not bit-equal, unless --from with --force, or with --max-kl, says whose values to
    keep, or --fold-norm finds that the last norm can take up, byte for byte, what is between them.
    """
    if (force or max_kl is not None) != (survivor is not None):
        raise click.UsageError("--force or --max-kl and --from embed|head|mean go together: say whose values survive")
    if force and max_kl is not None:
        raise click.UsageError("--force asks for no budget: give it or --max-kl, not both")
    if fold_norm and survivor is not None:
        raise click.UsageError("--fold-norm keeps the embedding, exactly: it goes without --from")
    if max_kl is not None and not isfinite(max_kl):
        raise click.UsageError("--max-kl takes a number of nats: one without a limit is --force")
    if text is not None and max_kl is None:
        raise click.UsageError("--text is what --max-kl is measured on")
    arguments = WriteArguments(**writing)
    planned = plan_retie(
        model,
        bias=bias,
        survivor=survivor,
        force=force,
        max_kl=max_kl,
        text=text,
        fold_norm=fold_norm,
        embed=embed,
        head=head,
        **arguments.planning,
    )
    finish(planned, arguments, as_json=as_json)
