"""Put the graph of an embedding before that of a decoder, so that one pass shares the tied matrix."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.onnx.export.embeds.text_part import EMBEDS

IDS = "input_ids"
_PREFIX = "embed_tokens."


def join_embedding(decoder: ir.Model, embedding: ir.Model) -> None:
    """Make ``decoder`` read token ids: move the nodes and weights of ``embedding`` to it.

    The value between the two has the name `inputs_embeds`.
    """
    graph, before = decoder.graph, embedding.graph
    (ids,), (rows,) = list(before.inputs), list(before.outputs)
    fed = next(value for value in graph.inputs if value.name == EMBEDS)
    nodes, weights = list(before), list(before.initializers.values())
    for value in [*weights, *(output for node in nodes for output in node.outputs)]:
        value.name = f"{_PREFIX}{value.name}"
    before.outputs.clear()
    before.inputs.clear()
    before.initializers.clear()
    before.remove(nodes)
    for weight in weights:
        graph.register_initializer(weight)
    for node in nodes:
        node.name = f"{_PREFIX}{node.name}"
    graph.insert_before(graph[0], nodes)
    fed.replace_all_uses_with(rows)
    graph.inputs.remove(fed)
    graph.inputs.insert(0, ids)
    rows.name, rows.shape, rows.type = EMBEDS, fed.shape, fed.type
    ids.name = IDS
    if fed.shape is not None:
        ids.shape = ir.Shape(list(fed.shape)[:2])
