"""Merge the first pass and the later steps of a decoder into one graph, whose weights are stored once.

The two differ only in the cross-attention's keys and values. The first pass computes them, and a step takes them from
the cache. One `If` chooses, by the input `use_cache_branch`. optimum and transformers.js feed that input.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

BRANCH = "use_cache_branch"
HIDDEN = "encoder_hidden_states"
_PREFIX = "cross_attention/"


def merge(decoder: ir.Model, cross: ir.Model) -> None:
    """Add to ``decoder`` the graph ``cross``, which computes keys and values of the encoder's hidden states.

    The decoder then returns them as `present.N.encoder.key` and `present.N.encoder.value`.
    """
    graph = decoder.graph
    for key, version in cross.graph.opset_imports.items():
        graph.opset_imports.setdefault(key, version)
    hidden = _input(graph, HIDDEN)
    computed = _computed(graph, cross, hidden)
    branch = ir.Value(name=BRANCH, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(branch)
    pasts = [value for value in graph.inputs if ".encoder." in str(value.name)]
    node = ir.node("If", [branch], num_outputs=len(pasts), name="cross_attention_cache")
    for past, chosen in zip(pasts, node.outputs, strict=True):
        chosen.name = str(past.name).replace("past_key_values", "present")
        chosen.shape, chosen.type = past.shape, past.type
        past.replace_all_uses_with(chosen)
        past.shape = _maybe_empty(past)
    node.attributes.add(ir.AttrGraph("then_branch", _from_cache(pasts)))
    node.attributes.add(ir.AttrGraph("else_branch", computed))
    graph.insert_before(graph[0], node)
    _return(graph, list(node.outputs))
    RemoveUnusedNodesPass()(decoder)


def _maybe_empty(past: ir.Value) -> ir.Shape:
    """Return the shape of a cache whose length differs from the encoder's in the first pass: it is empty then."""
    assert past.shape is not None
    batch, heads, _, width = past.shape
    return ir.Shape([batch, heads, "past_encoder_sequence", width])


def _computed(graph: ir.Graph, cross: ir.Model, hidden: ir.Value) -> ir.Graph:
    """Move the graph of ``cross`` into a branch without inputs. Its weights become those of ``graph``."""
    (source,) = cross.graph.inputs
    hidden.shape, hidden.type = source.shape, source.type
    source.replace_all_uses_with(hidden)
    weights = list(cross.graph.initializers.values())
    cross.graph.initializers.clear()
    for weight in weights:
        weight.name = f"{_PREFIX}{weight.name}"
        graph.register_initializer(weight)
    nodes, outputs = list(cross.graph), list(cross.graph.outputs)
    cross.graph.outputs.clear()
    cross.graph.remove(nodes)
    for index, node in enumerate(nodes):
        node.name = f"{_PREFIX}{node.name or index}"
        for value in node.outputs:
            value.name = f"{_PREFIX}{value.name}"
    return ir.Graph([], outputs, nodes=nodes, name="first_pass")


def _from_cache(pasts: list[ir.Value]) -> ir.Graph:
    """Return a branch that returns the cache."""
    nodes = [ir.node("Identity", [past], name=f"{_PREFIX}kept_{index}") for index, past in enumerate(pasts)]
    for past, node in zip(pasts, nodes, strict=True):
        value = node.outputs[0]
        value.name, value.shape, value.type = f"{_PREFIX}kept.{past.name}", past.shape, past.type
    return ir.Graph([], [node.outputs[0] for node in nodes], nodes=nodes, name="step")


def _return(graph: ir.Graph, values: list[ir.Value]) -> None:
    """Add the values to the outputs, each after those of the same layer."""
    outputs = list(graph.outputs)
    graph.outputs.clear()
    graph.outputs.extend(sorted([*outputs, *values], key=lambda value: _layer(str(value.name))))


def _layer(name: str) -> int:
    """Return the layer of a cache tensor; -1 for another value."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "present" else -1


def _input(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.inputs if value.name == name)
