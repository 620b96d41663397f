"""Index the nodes of a graph by their outputs, and trace their inputs back, also through branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.messages import Graph, Node, Tensor

_STEPS = 256
"""The most nodes of one trace. It ends the trace of a graph with a cycle."""
_UNFOLDED = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(eq=False)
class Scope:
    """A graph with the meaning of its names. It can also use the names of the graphs around it."""

    graph: Graph
    parent: Scope | None = None
    makers: dict[str, tuple[Node, int]] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    inner: dict[int, dict[str, Scope]] = field(default_factory=dict)

    def find(self, name: str) -> tuple[Scope, tuple[Node, int] | Tensor | None]:
        """Return the scope of a name, and its node or initializer. ``None`` for an input of the graph."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.makers:
                return scope, scope.makers[name]
            if name in scope.held:
                return scope, scope.held[name]
            scope = scope.parent
        return self, None


def scope_of(graph: Graph, parent: Scope | None = None) -> Scope:
    """Return the scope of a graph, with the scopes of all graphs inside it."""
    scope = Scope(graph, parent, held={tensor.name: tensor for tensor in graph.initializers})
    for number, node in enumerate(graph.nodes):
        for index, name in enumerate(node.outputs):
            scope.makers.setdefault(name, (node, index))
        scope.inner[number] = {key: scope_of(inside, scope) for key, inside in node.graphs.items()}
    return scope


def scopes(scope: Scope) -> Iterator[Scope]:
    """Yield this scope and the scopes inside it, outermost first."""
    yield scope
    for inner in scope.inner.values():
        for inside in inner.values():
            yield from scopes(inside)


@record
class Origin:
    """An initializer behind nodes that only transpose or cast it. ``perm`` is ``None`` without a transposition.

    ``shaped`` has the names of the constants with which it is reshaped.
    """

    tensor: Tensor
    perm: tuple[int, ...] | None
    kind: int
    operators: tuple[str, ...]
    shaped: tuple[str, ...] = ()

    @property
    def turned(self) -> bool:
        return self.perm == (1, 0)


def origin(scope: Scope, name: str, *, shaped: bool = False) -> Origin | None:
    """Return the initializer behind a value, through Transpose, Cast and Identity.

    If ``shaped`` is true, also through a Reshape to a constant shape.
    """
    passed: list[Node] = []
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if isinstance(producer, Tensor):
            return _turned(producer, passed)
        if producer is None or not (_passes(producer[0]) or (shaped and is_shaped(scope, producer[0]))):
            return None
        passed.append(producer[0])
        name = producer[0].inputs[0]
    return None


def _passes(node: Node) -> bool:
    return node.standard in ("Transpose", "Cast", "Identity") and bool(node.inputs)


def is_shaped(scope: Scope, node: Node) -> bool:
    """Return whether the node reshapes to a shape that is fixed when the session starts."""
    return node.standard == "Reshape" and len(node.inputs) > 1 and is_constant(scope, node.inputs[1])


def _turned(tensor: Tensor, passed: list[Node]) -> Origin | None:
    rank, kind = len(tensor.dims), tensor.kind
    perm = list(range(rank))
    shapes = tuple(node.inputs[1] for node in reversed(passed) if node.standard == "Reshape")
    for node in reversed(passed):
        if node.standard == "Transpose":
            turn = node.integers.get("perm") or list(reversed(range(rank)))
            if sorted(turn) != list(range(rank)):
                if shapes:
                    continue  # it transposes other axes; the shape identifies the form
                return None
            perm = [perm[side] for side in turn]
        elif node.standard == "Cast":
            kind = next(iter(node.integers.get("to", ())), kind)
    operators = tuple(node.standard for node in reversed(passed) if node.standard != "Identity")
    return Origin(tensor, None if perm == list(range(rank)) else tuple(perm), kind, operators, shapes)


def is_constant(scope: Scope, name: str) -> bool:
    """Return whether a value is fixed when the session starts."""
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if producer is None:
            return False
        if isinstance(producer, Tensor) or producer[0].standard == "Constant":
            return True
        if producer[0].standard not in _UNFOLDED or not producer[0].inputs:
            return False
        name = producer[0].inputs[0]
    return False


def integer(node: Node, name: str, default: int) -> int:
    """Return an integer attribute of a node, or ``default``."""
    return next(iter(node.integers.get(name, ())), default)
