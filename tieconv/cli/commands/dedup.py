"""`tieconv dedup`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.graphs import is_graph, plan_graph_dedup
from tieconv.api.plans.storage import plan_dedup
from tieconv.cli import graphs_elsewhere as graph
from tieconv.cli.options import common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("dedup", short_help="Store every byte-identical group once, as far as loaders restore the rest.")
@model_argument
@click.option(
    "--head-form",
    type=click.Choice(["gemm", "fused", "transpose"]),
    help="How a head of an ONNX graph reads the embedding: Gemm, com.microsoft FusedMatMul, or a Transpose, which "
    "costs a session a second copy. Default: the first of them that keeps every bit.",
)
@write_options
@name_options
@json_option
@common_options
def command(
    model: str, head_form: str | None, embed: str | None, head: str | None, as_json: bool, **writing: Any
) -> None:
    """Store every byte-identical group once, as far as loaders restore what is dropped.

    In safetensors a name is dropped where the architecture ties it and the config declares it tied; any other
    duplicate stays, and the plan says who needs it. The config is left alone.

    In ONNX graphs copies are found by content, transposed ones and exact casts too, and the nodes that read them are
    rewritten to read the one that stays.
    """
    arguments = WriteArguments(**writing)
    if is_graph(model):
        graph.refuse_options(embed=embed, head=head, drop_other_formats=arguments.drop_other_formats)
        graph.finish(plan_graph_dedup(model, head_form=head_form), arguments, as_json=as_json)
        return
    if head_form:
        raise click.UsageError("--head-form goes with an ONNX graph")
    finish(
        plan_dedup(model, embed=embed, head=head, **arguments.planning),
        arguments,
        as_json=as_json,
    )
