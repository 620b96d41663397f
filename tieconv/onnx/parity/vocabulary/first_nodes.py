"""Find the first nodes of a graph: those that read token ids, up to the first product, norm or attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.onnx.session.placement import HEAVY

_INTERNAL = frozenset({"If", "Loop", "Scan", "EmbedLayerNormalization", "GatherBlockQuantized"})


@record
class FirstNodes:
    """The first nodes of an onnx model: a copy of it that ends with them, without its data.

    ``rows`` are the values looked up in the word table. ``results`` are the values that later nodes read and that
    depend on token ids.
    """

    model: Any
    rows: tuple[str, ...]
    results: tuple[str, ...]


def first_nodes(model: Any, ids: tuple[str, ...], table: tuple[int, int]) -> FirstNodes | None:
    """Return the first nodes of ``model``, an onnx model without data, or ``None`` without a direct word lookup.

    ``ids`` are the inputs with token ids, and ``table`` is the shape of the word table.
    """
    graph = model.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    cheap = {value.name for value in graph.input} | set(shapes) | {""}
    of_ids, rows, nodes = set(ids), [], []
    for node in graph.node:
        if node.op_type in HEAVY | _INTERNAL or not cheap.issuperset(node.input):
            continue
        nodes.append(node)
        cheap.update(node.output)
        if of_ids.intersection(node.input):
            of_ids.update(node.output)
            if _is_lookup(node, _shapes_with(shapes, nodes), table, of_ids):
                rows.append(str(node.output[0]))
    results = tuple(dict.fromkeys(_results(graph, nodes, of_ids - set(ids))))
    return FirstNodes(_cut(model, nodes, tuple(rows), results), tuple(rows), results) if rows else None


def _is_lookup(node: Any, shapes: dict[str, tuple[int, ...]], table: tuple[int, int], of_ids: set[str]) -> bool:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return node.op_type == "Gather" and axis == 0 and shapes.get(node.input[0]) == table and node.input[1] in of_ids


def _shapes_with(shapes: dict[str, tuple[int, ...]], nodes: list[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tables, of transposed and cast ones too."""
    node = nodes[-1]
    for earlier in nodes[:-1]:
        if earlier.output and earlier.output[0] == node.input[0] and earlier.input and earlier.input[0] in shapes:
            shape = shapes[earlier.input[0]]
            if earlier.op_type == "Transpose" and len(shape) == 2:
                return {**shapes, node.input[0]: shape[::-1]}
            if earlier.op_type in ("Cast", "Identity"):
                return {**shapes, node.input[0]: shape}
    return shapes


def _results(graph: Any, nodes: list[Any], of_ids: set[str]) -> Iterator[str]:
    """Yield the values that depend on ids and that a later node reads, or that the graph returns."""
    ours = {id(node) for node in nodes}
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        later = id(node) not in ours
        yield from (name for name in node.input if later and name in of_ids)
        yield from (name for name in node.output if not later and name in of_ids & outputs)


def _cut(model: Any, nodes: list[Any], rows: tuple[str, ...], results: tuple[str, ...]) -> Any:
    """Return a copy of the model with these nodes and with these values as outputs."""
    from onnx import GraphProto, ModelProto, ValueInfoProto

    made = ModelProto()
    made.CopyFrom(model)
    made.graph.CopyFrom(GraphProto(name="first nodes"))
    needed = {name for node in nodes for name in node.input}
    made.graph.input.extend(value for value in model.graph.input if value.name in needed)
    made.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    made.graph.node.extend(nodes)
    made.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys((*rows, *results)))
    return made


def after_lookup(first: FirstNodes, dtype: int) -> Any:
    """Return a copy of the first nodes that takes the looked-up rows as inputs. ``dtype`` is their ONNX type."""
    from onnx import ModelProto, helper

    made = ModelProto()
    made.CopyFrom(first.model)
    del made.graph.node[:]
    made.graph.node.extend(node for node in first.model.graph.node if not set(first.rows).intersection(node.output))
    made.graph.input.extend(helper.make_tensor_value_info(name, dtype, None) for name in first.rows)
    del made.graph.output[:]
    made.graph.output.extend(
        value for value in first.model.graph.output if value.name in first.results and value.name not in first.rows
    )
    return made
