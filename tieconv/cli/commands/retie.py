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
    help="Which values --force and --max-kl keep.",
)
@click.option("--force", is_flag=True, help="Tie tensors that differ. Changes the model's outputs. Needs --from.")
@click.option(
    "--max-kl",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Tie tensors that differ if the output distribution provably changes by at most X nats per token (KL "
    "divergence). Needs --from.",
)
@click.option(
    "--text", type=click.Path(), metavar="FILE", help="With --max-kl: measure on this text instead (needs torch)."
)
@click.option(
    "--fold-norm",
    is_flag=True,
    help="Move factors that were folded into the head back into the last norm. Refuses if a value would be rounded.",
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
    """Tie the head: drop the redundant copy and set the config to tied.

    Refuses when the tensors are not byte-identical. Then choose the values to keep with --from, and give --force or
    --max-kl. Or try --fold-norm, which keeps every output bit.
    """
    if (force or max_kl is not None) != (survivor is not None):
        raise click.UsageError("--from embed|head|mean needs --force or --max-kl, and each of these needs --from")
    if force and max_kl is not None:
        raise click.UsageError("--force and --max-kl cannot be used together")
    if fold_norm and survivor is not None:
        raise click.UsageError("--fold-norm keeps the embedding, so --from cannot be used with it")
    if max_kl is not None and not isfinite(max_kl):
        raise click.UsageError("--max-kl needs a finite number of nats; use --force for no limit")
    if text is not None and max_kl is None:
        raise click.UsageError("--text needs --max-kl")
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
