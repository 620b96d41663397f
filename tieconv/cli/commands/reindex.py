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
@click.option("--prune", is_flag=True, help="Leave out the weight files that are outside the index.")
@click.option("--add-format", is_flag=True, help="Name the format, pt, where safetensors metadata names none.")
@click.option(
    "--strip-prefix",
    is_flag=True,
    help="Take the prefix of a training wrapper, such as module. or _orig_mod., from every tensor name.",
)
@json_option
@common_options
def command(model: str, prune: bool, add_format: bool, strip_prefix: bool, as_json: bool, **writing: Any) -> None:
    """Rebuild the shard index from the headers of the shards.

    Works on safetensors and torch shards where the index is missing, cannot be read, names tensors that are not there
    or has wrong totals; what else it says is kept. Refuses where a shard is missing or one tensor stands in two shards
    with different bytes.

    --add-format is also for a model of one file. transformers 4 refuses a safetensors file whose metadata names no
    format, or another than pt, tf, flax and mlx: it becomes pt there and where there is no metadata, and tensors and
    all other metadata stay as they are.

    --strip-prefix is also for a model of one file. It renames the tensors in weights and index together; their bytes
    stay as they are. Known are the prefixes of DistributedDataParallel, FullyShardedDataParallel, torch.compile,
    activation checkpointing and PEFT.
    """
    if strip_prefix and (prune or add_format):
        raise click.UsageError("--strip-prefix goes alone: run `tieconv reindex` once more for the others")
    arguments = WriteArguments(**writing)
    finish(
        plan_reindex(model, prune=prune, add_format=add_format, strip_prefix=strip_prefix, **arguments.planning),
        arguments,
        as_json=as_json,
    )
