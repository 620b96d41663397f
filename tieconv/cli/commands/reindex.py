"""`tieconv reindex`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.plans.shards import plan_reindex
from tieconv.cli.options import common_options, json_option, model_argument, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("reindex")
@model_argument
@write_options
@click.option("--prune", is_flag=True, help="Remove the weight files that the index does not list.")
@click.option(
    "--add-format", is_flag=True, help="Add the metadata entry format: pt to safetensors files without a format."
)
@click.option(
    "--strip-prefix",
    is_flag=True,
    help="Remove the prefix of a training wrapper, such as module. or _orig_mod., from every tensor name.",
)
@json_option
@common_options
def command(model: str, prune: bool, add_format: bool, strip_prefix: bool, as_json: bool, **writing: Any) -> None:
    """Rebuild the shard index from the headers of the shards.

    Works on safetensors and torch shards. Use it when the index is missing, cannot be read, lists tensors that are not
    stored, or has wrong totals. Other entries of the index stay. Refuses when a shard is missing,
    or when two shards store different bytes for one tensor.

    --add-format also works on a model of one file. transformers 4 refuses a safetensors file whose
    metadata entry "format" is missing or not pt, tf, flax or mlx. --add-format sets it to pt. Tensors and other
    metadata do not change.

    --strip-prefix also works on a model of one file. It renames the tensors in the weights and the index. Their bytes
    do not change. It knows the prefixes of DistributedDataParallel, FullyShardedDataParallel, torch.compile,
    activation checkpointing and PEFT.
    """
    if strip_prefix and (prune or add_format):
        raise click.UsageError("--strip-prefix cannot be used with --prune or --add-format; run reindex twice")
    arguments = WriteArguments(**writing)
    finish(
        plan_reindex(model, prune=prune, add_format=add_format, strip_prefix=strip_prefix, **arguments.planning),
        arguments,
        as_json=as_json,
    )
