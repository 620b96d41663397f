"""`tieconv untie`."""

from __future__ import annotations

from typing import Any

import click

from tieconv.api.graphs import is_graph, plan_graph_untie
from tieconv.api.plans.ties import plan_untie
from tieconv.cli import graphs_elsewhere as graph
from tieconv.cli.options import bias_option, common_options, json_option, model_argument, name_options, write_options
from tieconv.cli.write import WriteArguments, finish


@click.command("untie", short_help="Untie the head: store it, and every other tied name, as a separate tensor.")
@model_argument
@write_options
@click.option("--keep-flag", is_flag=True, help="Store the copies, but leave the config tied.")
@bias_option
@name_options
@json_option
@common_options
def command(
    model: str,
    keep_flag: bool,
    bias: str,
    embed: str | None,
    head: str | None,
    as_json: bool,
    **writing: Any,
) -> None:
    """Untie the head: store it, and every other tied name, as a separate tensor. The outputs stay the same.

    In an ONNX graph the head gets a separate matrix of shape [H, V] and a MatMul node. Refuses when the tie flag also
    scales the forward pass and the weights cannot absorb the factor exactly.
    """
    arguments = WriteArguments(**writing)
    if is_graph(model):
        graph.refuse_options(
            embed=embed,
            head=head,
            keep_flag=keep_flag,
            bias=bias != "keep",
            drop_other_formats=arguments.drop_other_formats,
        )
        graph.finish(plan_graph_untie(model), arguments, as_json=as_json)
        return
    planned = plan_untie(model, bias=bias, keep_flag=keep_flag, embed=embed, head=head, **arguments.planning)
    finish(planned, arguments, as_json=as_json)
