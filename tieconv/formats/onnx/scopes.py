"""Trace the values of a graph back to its tensors, through subgraphs and through functions of the model.

A Constant node is an initializer with another spelling: ONNX Runtime makes it one when it loads the graph. So a scope
holds both alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

from tieconv.checkpoint.graph_structure import MIN_ELEMENTS, MatrixUse
from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.messages import Graph, Node, Tensor

_STEPS = 256
"""The most nodes of one trace. It ends the trace of a graph with a cycle."""
_MAX_NODES = 1_000_000
"""The most nodes of function bodies, a body counted for each call. Further calls remain nodes of unknown meaning."""
_UNFOLDED = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")
FED, COUNTED = "tieconv.Fed", "tieconv.Counted"
"""The operators of inputs of a body: a value of the graph around it, or a number of the trip."""
CALL = "call"
"""The key of a function's body among the inner scopes of the node that calls it."""
OUTPUT = "output"


@dataclass(eq=False)
class Scope:
    """A graph with the meaning of its names. It can also use the names of the graphs around it.

    The body of a function is a scope for each call. It sees only its parameters, which are ``bound`` to values of the
    caller. ``path`` identifies the subgraph, with an entry for each level. A function's body has the path of its
    caller, because ONNX Runtime inlines functions. ``inner`` has the scopes inside a node by the id of the node.
    """

    graph: Graph
    parent: Scope | None = None
    path: tuple[int, ...] = ()
    makers: dict[str, tuple[Node, int]] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    inner: dict[int, dict[str, Scope]] = field(default_factory=dict)
    bound: dict[str, tuple[Scope, str]] = field(default_factory=dict)

    def find(self, name: str) -> tuple[Scope, tuple[Node, int] | Tensor | None]:
        """Return the scope of a name, and its node or tensor. ``None`` for an input of the graph."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.makers:
                return scope, scope.makers[name]
            if name in scope.held:
                return scope, scope.held[name]
            scope, name = scope.bound.get(name, (scope.parent, name))
        return self, None

    def inside(self, node: Node, index: int) -> list[tuple[Scope, str]]:
        """Return the values of subgraphs or of a function that output ``index`` of the node returns."""
        position = index + (node.standard == "Loop")  # the first output of a Loop's body is its condition
        inner = self.inner.get(id(node), {}).values()
        return [(scope, scope.graph.outputs[position]) for scope in inner if position < len(scope.graph.outputs)]


@dataclass
class _Functions:
    """The functions of a model by name. ``left`` is how many nodes may still be added."""

    bodies: dict[str, Graph]
    left: int = _MAX_NODES
    subgraphs: int = 0

    def called(self, node: Node, calls: tuple[str, ...]) -> Graph | None:
        body = self.bodies.get(f"{node.domain}:{node.operator}:{node.overload}")
        if body is None or body.name in calls or len(body.nodes) >= self.left or node.parameters:
            return None
        self.left -= len(body.nodes) + 1
        return body


def scope_of(graph: Graph, functions: Iterable[Graph] = ()) -> Scope:
    """Return the scope of a graph, with the scopes of its subgraphs and of the functions that it calls."""
    return _filled(Scope(graph), _Functions({body.name: body for body in functions}), ())


def _filled(scope: Scope, functions: _Functions, calls: tuple[str, ...]) -> Scope:
    scope.held = {tensor.name: tensor for tensor in scope.graph.initializers}
    for node in scope.graph.nodes:
        for index, name in enumerate(node.outputs):
            if node.constant is not None and name not in scope.held:
                scope.held[name] = node.constant
            else:
                scope.makers.setdefault(name, (node, index))
        inner = {key: _subgraph(scope, node, graph, functions, calls) for key, graph in node.graphs.items()}
        body = functions.called(node, calls)
        if body is not None:
            call = Scope(body, path=scope.path)
            call.bound = {name: (scope, operand) for name, operand in zip(body.inputs, node.inputs, strict=False)}
            inner[CALL] = _filled(call, functions, (*calls, body.name))
        if inner:
            scope.inner[id(node)] = inner
    return scope


def _subgraph(scope: Scope, node: Node, graph: Graph, functions: _Functions, calls: tuple[str, ...]) -> Scope:
    functions.subgraphs += 1
    inside = Scope(graph, scope, (*scope.path, functions.subgraphs))
    skipped = 2 if node.standard == "Loop" else 0  # the number of the trip and the condition
    for position, name in enumerate(graph.inputs):
        source = node.inputs[position : position + 1] if position >= skipped else []
        inside.makers[name] = (Node(FED if source else COUNTED, inputs=source), 0)
    return _filled(inside, functions, calls)


def scopes(scope: Scope) -> Iterator[Scope]:
    """Yield this scope and the scopes inside it, outermost first."""
    yield scope
    for inner in scope.inner.values():
        for inside in inner.values():
            yield from scopes(inside)


@record
class Origin:
    """An initializer behind nodes that only transpose or cast it. ``perm`` is ``None`` without a transposition.

    ``shaped`` has the names of the constants with which it is reshaped. ``holder`` identifies the scope that holds it.
    """

    tensor: Tensor
    perm: tuple[int, ...] | None
    kind: int
    operators: tuple[str, ...]
    shaped: tuple[str, ...] = ()
    holder: int = 0

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
            return _turned(producer, passed, id(scope))
        if producer is None:
            return None
        inside = scope.inside(*producer) if CALL in scope.inner.get(id(producer[0]), {}) else []
        if inside:
            scope, name = inside[0]
            continue
        if not (_passes(producer[0]) or (shaped and is_shaped(scope, producer[0]))):
            return None
        passed.append(producer[0])
        name = producer[0].inputs[0]
    return None


def _passes(node: Node) -> bool:
    return node.standard in ("Transpose", "Cast", "Identity") and bool(node.inputs)


def is_shaped(scope: Scope, node: Node) -> bool:
    """Return whether the node reshapes to a shape that is fixed when the session starts."""
    return node.standard == "Reshape" and len(node.inputs) > 1 and is_constant(scope, node.inputs[1])


def _turned(tensor: Tensor, passed: list[Node], holder: int) -> Origin | None:
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
    return Origin(tensor, None if perm == list(range(rank)) else tuple(perm), kind, operators, shapes, holder)


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


def uses(outer: Scope, labels: dict[int, str]) -> Iterator[MatrixUse]:
    """Yield each use of a tensor with `MIN_ELEMENTS` or more. Transpose and Identity do not count as uses.

    `dedup` inlines the functions of a model in which one of them holds such a tensor. Otherwise the call is the use.
    """
    every = list(scopes(outer))
    bodies = {id(inside) for scope in every for inner in scope.inner.values() for inside in scopes_called(inner)}
    inlined = any(_counts(tensor) for scope in every if id(scope) in bodies for tensor in scope.held.values())
    for scope in every:
        if id(scope) in bodies and not inlined:
            continue
        for node in scope.graph.nodes:
            called = inlined and CALL in scope.inner.get(id(node), {})
            if called or _passes_on(node) or node.standard == "Cast":
                continue
            columns = node.standard == "Gather" and integer(node, "axis", 0) in (1, -1)
            for index, name in enumerate(node.inputs):
                yield from _use(scope, name, labels, node.standard, index, columns=columns)
        for index, name in enumerate(scope.graph.outputs if id(scope) not in bodies else ()):
            yield from _use(scope, name, labels, OUTPUT, index)


def scopes_called(inner: dict[str, Scope]) -> Iterator[Scope]:
    """Yield the scopes of a function's body that a node calls."""
    if CALL in inner:
        yield from scopes(inner[CALL])


def _counts(tensor: Tensor) -> bool:
    return prod(tensor.dims) >= MIN_ELEMENTS


def _use(
    scope: Scope, name: str, labels: dict[int, str], operator: str, index: int, *, columns: bool = False
) -> Iterator[MatrixUse]:
    passed: list[Node] = []
    path = scope.path
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if isinstance(producer, Tensor):
            if _counts(producer):
                yield _seen(labels[id(producer)], passed, operator, index, (path, scope.path), columns=columns)
            return
        if (
            producer is None
            or not (_passes_on(producer[0]) or producer[0].standard == "Cast")
            or not producer[0].inputs
        ):
            return
        passed.append(producer[0])
        name = producer[0].inputs[0]


def _seen(
    name: str,
    passed: list[Node],
    operator: str,
    index: int,
    paths: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    columns: bool,
) -> MatrixUse:
    """Return the use. If a Cast is on the way, the Cast is the user."""
    turned = False
    for node in reversed(passed):
        if node.standard == "Cast":
            return MatrixUse(name, "Cast", 0, turned, path=paths[0], home=paths[1])
        turned ^= node.standard == "Transpose"
    return MatrixUse(name, operator, index, turned, columns, *paths)


def _passes_on(node: Node) -> bool:
    turn = node.integers.get("perm")
    return node.standard == "Identity" or (node.standard == "Transpose" and turn in (None, [], [1, 0]))
