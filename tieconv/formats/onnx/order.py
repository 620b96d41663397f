"""Explain why a node reads a missing value: a cycle, a wrong order, or an unknown name."""

from __future__ import annotations

from tieconv.formats.onnx.messages import Graph, Node
from tieconv.text import shown


def order_fault(graph: Graph, index: int, name: str) -> str:
    """Return the fault of the node at ``index``, which reads ``name`` before another node computes it."""
    node = graph.nodes[index]
    subject = f"node {index:,} ({shown(node.operator, 60)})"
    if name in node.outputs:
        return f"{subject} reads {shown(name)}, its own output"
    maker = next((at for at, candidate in enumerate(graph.nodes) if name in candidate.outputs), None)
    if maker is None:
        return f"{subject} reads {shown(name)}, which is not an input, an initializer or the output of a node"
    if _reaches(graph.nodes, index, maker):
        return f"{subject} reads {shown(name)}, which depends on its own output: the nodes form a cycle"
    return f"{subject} reads {shown(name)} before node {maker:,} computes it: the nodes are not in topological order"


def _reaches(nodes: list[Node], start: int, goal: int) -> bool:
    """Return whether the node ``goal`` depends on the node ``start``."""
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(at)
    pending, seen = [start], {start}
    while pending:
        for name in nodes[pending.pop()].outputs:
            for reader in readers.get(name, ()):
                if reader == goal:
                    return True
                if reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
    return False
