"""`tieconv reindex`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.shards import plan_reindex
from tieconv.cli.options import common_options, json_option, model_argument, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("reindex")
@model_argument
@write_options
@click.option("--prune", is_flag=True, help="Leave out the weight files that are outside the index.")
@click.option("--add-format", is_flag=True, help="Name the format, pt, where safetensors metadata names none.")
@json_option
@common_options
def command(model: str, prune: bool, add_format: bool, as_json: bool, **writing: Any) -> None:
    """Rebuild the shard index from the headers of the shards.

    Works on safetensors and torch shards where the index is missing, cannot be read, names tensors that are not there
    or has wrong totals; what else it says is kept. Refuses where a shard is missing or one tensor stands in two shards
    with different bytes.

    --add-format is also for a model of one file. transformers 4 refuses a safetensors file whose metadata names no
    format, or another than pt, tf, flax and mlx: it becomes pt there and where there is no metadata, and tensors and
    all other metadata stay as they are.
    """
    arguments = WriteArguments(**writing)
    finish(
        plan_reindex(model, prune=prune, add_format=add_format, **arguments.planning),
        arguments,
        as_json=as_json,
    )
