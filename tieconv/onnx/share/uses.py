"""Who reads an initializer, seen through the nodes that only turn it round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

_STANDARD = ("", "ai.onnx")
MATRIX = 2


@dataclass(frozen=True)
class Use:
    """Input ``index`` of ``node`` reads the matrix; ``flipped`` where it reads it transposed.

    ``node`` is ``None`` where the matrix itself is an output of the graph.
    """

    node: ir.Node | None
    index: int
    flipped: bool


def is_standard(node: ir.Node, *names: str) -> bool:
    """Whether the node is one of the standard operators ``names``."""
    return node.domain in _STANDARD and node.op_type in names


def uses_of(value: ir.Value, *, flipped: bool = False) -> Iterator[Use]:
    """The nodes that compute with the value; Transpose and Identity are looked through."""
    if value.is_graph_output():
        yield Use(None, 0, flipped)
    for node, index in tuple(value.uses()):
        if _passes_on(node):
            yield from uses_of(node.outputs[0], flipped=flipped != is_standard(node, "Transpose"))
        else:
            yield Use(node, index, flipped)


def _passes_on(node: ir.Node) -> bool:
    if is_standard(node, "Identity"):
        return True
    perm = node.attributes.get("perm")
    return is_standard(node, "Transpose") and (perm is None or list(perm.as_ints()) == [1, 0])


def remove_unread(value: ir.Value) -> None:
    """Remove the Transpose and Identity nodes behind the value that nothing reads any more."""
    for node, _ in tuple(value.uses()):
        if _passes_on(node) and node.graph is not None:
            remove_unread(node.outputs[0])
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                node.graph.remove(node, safe=True)


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def describe(node: ir.Node | None) -> str:
    """The node for a report."""
    if node is None:
        return "the graph, as an output"
    return f"{node.op_type} {node.name or node.outputs[0].name}"
