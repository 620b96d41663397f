"""`tieconv dedup`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.graphs import is_graph, plan_graph_dedup
from tieconv.api.plans.storage import plan_dedup
from tieconv.cli import graphs_elsewhere as graph
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command(
    "dedup", short_help="Store byte-identical tensors once, only where every loader restores the dropped names."
)
@model_argument
@click.option(
    "--head-form",
    type=click.Choice(["gemm", "fused", "transpose"]),
    help="How the head of an ONNX graph reads the embedding: Gemm, FusedMatMul or Transpose. "
    "With Transpose a session stores a second copy. Default: the first form that keeps every bit.",
)
@write_options
@name_options
@json_option
@common_options
def command(
    model: str, head_form: str | None, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Store byte-identical tensors once, only where every loader restores the dropped names.

    In safetensors, dedup drops a name if the architecture ties it and the config says tied. Other duplicates stay,
    and the plan says which loader needs them. The config does not change.

    In ONNX graphs, dedup compares the bytes of all initializers. It also finds transposed copies and exact casts. It
    rewrites their nodes to read the copy that stays.
    """
    arguments = WriteArguments(**writing)
    if is_graph(model):
        graph.refuse_options(embed=embed, head=head, drop_other_formats=arguments.drop_other_formats)
        graph.finish(plan_graph_dedup(model, head_form=head_form), arguments, as_json=as_json)
        return
    if head_form:
        raise click.UsageError("--head-form needs an ONNX graph")
    finish(
        plan_dedup(model, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
