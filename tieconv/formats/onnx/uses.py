"""List the nodes that read an initializer, directly or through Transpose and Identity."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS, MatrixUse
from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.structure import Scope, integer, scopes

_STEPS = 256
OUTPUT = "output"


def uses(outer: Scope, labels: dict[int, str]) -> Iterator[MatrixUse]:
    """Yield each use of an initializer with `MIN_ELEMENTS` or more. Transpose and Identity do not count as uses."""
    for scope in scopes(outer):
        for node in scope.graph.nodes:
            if _passes_on(node) or node.standard == "Cast":
                continue
            columns = node.standard == "Gather" and integer(node, "axis", 0) in (1, -1)
            for index, name in enumerate(node.inputs):
                yield from _use(scope, name, labels, node.standard, index, columns=columns)
        for index, name in enumerate(scope.graph.outputs):
            yield from _use(scope, name, labels, OUTPUT, index)


def _use(
    scope: Scope, name: str, labels: dict[int, str], operator: str, index: int, *, columns: bool = False
) -> Iterator[MatrixUse]:
    passed: list[Node] = []
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if isinstance(producer, Tensor):
            if prod(producer.dims) >= MIN_ELEMENTS:
                yield _seen(labels[id(producer)], passed, operator, index, columns=columns)
            return
        if (
            producer is None
            or not (_passes_on(producer[0]) or producer[0].standard == "Cast")
            or not producer[0].inputs
        ):
            return
        passed.append(producer[0])
        name = producer[0].inputs[0]


def _seen(name: str, passed: list[Node], operator: str, index: int, *, columns: bool) -> MatrixUse:
    """Return the use. If a Cast is on the way, the Cast is the user."""
    turned = False
    for node in reversed(passed):
        if node.standard == "Cast":
            return MatrixUse(name, "Cast", 0, turned)
        turned ^= node.standard == "Transpose"
    return MatrixUse(name, operator, index, turned, columns)


def _passes_on(node: Node) -> bool:
    turn = node.integers.get("perm")
    return node.standard == "Identity" or (node.standard == "Transpose" and turn in (None, [], [1, 0]))
