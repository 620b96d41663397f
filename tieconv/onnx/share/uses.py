"""Find the nodes that read an initializer, also through Transpose and Identity nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tieconv.checkpoint.value_type import record

_STANDARD = ("", "ai.onnx")
MATRIX = 2
SMALL = 8
"""Most elements of a constant that counts as a shape or a number, not as a tensor."""


@record
class Use:
    """Input ``index`` of ``node`` reads the matrix. ``flipped``: it reads the transpose.

    ``node`` is ``None`` if the matrix itself is an output of the graph. ``dtype`` is the type that the node reads; the
    graph may not declare the type behind a Transpose.
    """

    node: ir.Node | None
    index: int
    flipped: bool
    dtype: ir.DataType | None = None


def is_standard(node: ir.Node, *names: str) -> bool:
    """Return whether the node is one of the standard operators ``names``."""
    return node.domain in _STANDARD and node.op_type in names


def uses_of(value: ir.Value, *, flipped: bool = False, dtype: ir.DataType | None = None) -> Iterator[Use]:
    """Yield the nodes that compute with the value, of type ``dtype``, also through Transpose and Identity."""
    dtype = dtype or value.dtype
    if value.is_graph_output():
        yield Use(None, 0, flipped, dtype)
    for node, index in tuple(value.uses()):
        if _passes_on(node):
            yield from uses_of(node.outputs[0], flipped=flipped != is_standard(node, "Transpose"), dtype=dtype)
        else:
            yield Use(node, index, flipped, dtype)


def _passes_on(node: ir.Node) -> bool:
    if is_standard(node, "Identity"):
        return True
    perm = node.attributes.get("perm")
    return is_standard(node, "Transpose") and (perm is None or list(perm.as_ints()) == [1, 0])


def remove_unread(value: ir.Value) -> None:
    """Remove the Transpose and Identity nodes behind the value that no other node reads."""
    for node, _ in tuple(value.uses()):
        if _passes_on(node) and node.graph is not None:
            remove_unread(node.outputs[0])
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                node.graph.remove(node, safe=True)


def drop(node: ir.Node) -> None:
    """Remove a node that no other node reads, and the constants and shapes that only it read."""
    if node.graph is None or any(value.uses() or value.is_graph_output() for value in node.outputs):
        return
    inputs = [value for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for value in inputs:
        drop_unread(value)


def drop_unread(value: ir.Value) -> None:
    """Remove a small constant or the nodes of a shape if nothing reads them. A matrix is never removed."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if producer is not None:
        if is_standard(producer, "Constant", "Concat", "Slice", "Shape", "Reshape"):
            drop(producer)
    elif value.is_initializer() and isinstance(value.graph, ir.Graph):
        tensor = value.const_value
        if tensor is not None and tensor.size <= SMALL:
            value.graph.initializers.pop(str(value.name))


def integer(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def describe(node: ir.Node | None) -> str:
    """Return the node as a phrase for a report."""
    if node is None:
        return "the graph, as an output"
    return f"{node.op_type} {node.name or node.outputs[0].name}"
