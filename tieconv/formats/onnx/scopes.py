"""Trace the values of a graph back to its tensors, through subgraphs and through functions of the model.

A Constant node is an initializer with another spelling: ONNX Runtime makes it one when it loads the graph. So a scope
holds both alike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from math import prod
from typing import Any

from tieconv.checkpoint.graph_structure import MIN_ELEMENTS, MatrixUse
from tieconv.checkpoint.model_files import REFUSED_BY_READER, Caution
from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.messages import BYTES, STRING, Graph, Model, Node, Tensor
from tieconv.formats.onnx.tensor import TYPES
from tieconv.package_data import data_text
from tieconv.text import count, shown

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
        node = producer[0]
        keeps = node.standard in ("Transpose", "Cast", "Identity") and node.inputs
        if not (keeps or (shaped and is_shaped(scope, node))):
            return None
        passed.append(node)
        name = node.inputs[0]
    return None


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
    called_scopes = (inner[CALL] for scope in every for inner in scope.inner.values() if CALL in inner)
    bodies = {id(inside) for body in called_scopes for inside in scopes(body)}
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


# Predict what `onnx.checker` and ONNX Runtime refuse in a graph's structure, without importing either.
#
# Source: `onnx/checker.cc` of onnx 1.23 and `core/graph/graph.cc` of ONNX Runtime 1.32. Operators of ai.onnx and
# ai.onnx.ml are checked against `data/onnx_operators.json`: names, numbers of inputs and outputs, and attributes.
# Types and shapes of computed values are not inferred. Operators of other domains are not known.

MAX_LISTED = 4
"""The most faults of one file that are reported."""
CHECKER, SESSION = "onnx.checker", "ONNX Runtime"
NEWEST_IR, NEWEST_OPSET = 14, 28
"""The newest IR version and the newest opset of ai.onnx that ONNX Runtime 1.32 reads."""
_NO_OPSETS = 3
"""The first IR version that must import opsets."""
_TYPED = 2
"""The first IR version in which an attribute must have a type."""
_PLACES = frozenset({"location", "offset", "length", "checksum"})
"""The keys of external data that ONNX Runtime knows, except for those of prepacked weights."""
_STRINGS, _RAW = 6, 9
"""The tensor fields for strings and for raw bytes."""
_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer does not have to be an input."""

Fault = tuple[str, str]
"""The reader that refuses the file, and the reason."""


def cautions(model: Model, file: str, *, is_utf8: bool) -> tuple[Caution, ...]:
    """Return cautions with the first reasons why a reader refuses the model. A rule reports them as errors.

    ``is_utf8`` is whether all strings of the file are UTF-8.
    """
    return tuple(
        Caution(REFUSED_BY_READER, f"{reader} refuses {shown(file)}: {why}")
        for reader, why in islice(_faults(model, is_utf8), MAX_LISTED)
    )


def _faults(model: Model, is_utf8: bool) -> Iterator[Fault]:
    if not is_utf8:
        yield SESSION, "one of its names is not UTF-8"
    if model.ir_version < 1:
        yield CHECKER, "it has no IR version"
    elif model.ir_version > NEWEST_IR:
        yield SESSION, f"its IR version is {model.ir_version}, newer than {NEWEST_IR}"
    if model.ir_version >= _NO_OPSETS and not model.opsets:
        yield CHECKER, "it imports no opset"
    for domain, version in model.opsets.items():
        if version < 1 or (version > NEWEST_OPSET and domain in STANDARD):
            yield SESSION, f"it imports the unsupported opset {version} of {shown(domain) or 'ai.onnx'}"
    for tensor in model.tensors:
        subject = f"the tensor {shown(tensor.name)}"
        if tensor.kind not in TYPES and tensor.kind != STRING:
            yield CHECKER, f"{subject} has the undefined element type {tensor.kind}"
        fields = {field[0] for field in tensor.typed} | ({_RAW} if tensor.raw is not None else set())
        for key in tensor.entries if tensor.external else ():
            if key in _PLACES and not tensor.entries[key]:
                yield SESSION, f"{subject} has an empty {key} in its external data"
            elif key not in _PLACES and not key.startswith("prepacked_"):
                yield SESSION, f"{subject} has the unknown key {shown(key) or '(empty)'} in its external data"
        if tensor.external and tensor.moved:
            yield SESSION, f"{subject} has two locations in its external data"
        if tensor.external and fields:
            yield CHECKER, f"{subject} has external data and also holds values"
        elif len(fields) > 1:
            yield CHECKER, f"{subject} holds its values in two fields"
        elif tensor.kind == STRING and tensor.raw is not None:
            yield CHECKER, f"{subject} holds strings as raw bytes"
        elif tensor.kind == STRING and fields - {_STRINGS}:
            yield CHECKER, f"{subject} holds strings as numbers"
        elif not fields and not tensor.external and 0 not in tensor.dims:
            yield CHECKER, f"{subject} holds no values"
        elif 0 in tensor.dims and any(kind != BYTES or end > start for _, kind, start, end in tensor.typed):
            yield CHECKER, f"{subject} has no elements but holds values"
    yield from _of_main(model.graph, model)
    names = frozenset(function.name.rpartition(":")[0] for function in model.functions)
    typed = model.ir_version >= _TYPED
    yield from _of_graph(model.graph, [], _Imports(model.opsets, names, typed))
    for name in _repeated(function.name for function in model.functions):
        yield CHECKER, f"two functions have the name {shown(name)}"
    for function in model.functions:
        yield from _of_graph(function, [], _Imports(function.opsets, names, typed))
        # Each node of a function whose operator has another definition in the opset of the model.
        for index, node in enumerate(function.nodes):
            own, outer = _since(node, function.opsets), _since(node, model.opsets)
            if own != outer and None not in (own, outer):
                yield CHECKER, f"{label(node, index)} of a function has another definition in the opset of the model"


@record
class _Imports:
    """What the nodes of a graph may use: operator sets by domain, and the functions of the model as ``domain:name``.

    ``typed`` is whether attributes must have a type.
    """

    opsets: Mapping[str, int]
    functions: frozenset[str]
    typed: bool


def _of_graph(graph: Graph, outer: list[set[str]], imports: _Imports) -> Iterator[Fault]:
    for name in _repeated(graph.inputs):
        yield CHECKER, f"two inputs have the name {shown(name)}"
    if any(not tensor.name for tensor in graph.initializers):
        yield CHECKER, "an initializer has no name"
    made = {*graph.inputs, *(tensor.name for tensor in graph.initializers), *graph.sparse_names}
    for name in _repeated(node.name for node in graph.nodes if node.name and node.operator != "Constant"):
        yield SESSION, f"two nodes have the name {shown(name)}"
    for name, element, _ in graph.elements if outer else ():  # the main graph is checked in `_of_main`
        if element is not None and element not in TYPES and element != STRING:
            yield SESSION, f"the input or output {shown(name) or '(empty)'} has the undefined element type {element}"
    yield from _of_nodes(graph, [*outer, made], imports)
    scopes = [*outer, made]
    for name in graph.outputs:
        if not any(name in scope for scope in scopes):
            yield SESSION, f"no node computes its output {shown(name)}"


def _of_main(graph: Graph, model: Model) -> Iterator[Fault]:
    if not graph.name:
        yield CHECKER, "its graph has no name"
    for name, element, shaped in graph.elements:
        subject = f"the input or output {shown(name) or '(empty)'}"
        if element not in TYPES and element != STRING:
            type_ = f"the undefined element type {element}" if element else "no element type"
            yield CHECKER, f"{subject} has {type_}"
        elif not shaped:
            yield CHECKER, f"{subject} has no shape"
    if model.ir_version < _FREE_INITIALIZERS:
        inputs = set(graph.inputs)
        for tensor in graph.initializers:
            if tensor.name not in inputs:
                demanded = f"is not an input, as IR version {model.ir_version} demands"
                yield CHECKER, f"the initializer {shown(tensor.name)} {demanded}"


def _of_nodes(graph: Graph, scopes: list[set[str]], imports: _Imports) -> Iterator[Fault]:
    made = scopes[-1]
    for index, node in enumerate(graph.nodes):
        if not node.operator:
            yield CHECKER, f"node {index} has no operator"
        elif not node.inputs and not node.outputs:
            yield CHECKER, f"{label(node, index)} has neither an input nor an output"
        domain = "" if node.domain in STANDARD else node.domain
        names = STANDARD if not node.domain else {node.domain}  # a node of "ai.onnx" needs an import with this spelling
        opset = next((version for name, version in imports.opsets.items() if name in names), 0)
        if imports.opsets and not opset:
            used = shown(node.domain) or "ai.onnx"
            yield CHECKER, f"{label(node, index)} uses the opset of {used}, which is not imported"
        if node.operator and domain in _operators() and f"{node.domain}:{node.operator}" not in imports.functions:
            for why in _of_operator(node, domain, opset):
                yield SESSION, f"{label(node, index)} {why}"
        for name in [name for name, type_ in node.types.items() if not type_] if imports.typed else ():
            yield CHECKER, f"{label(node, index)} has the attribute {shown(name) or '(empty)'} without a type"
        for name in node.inputs:
            if name and not any(name in scope for scope in scopes):
                yield CHECKER, _order_fault(graph, index, name)
        for inner in node.graphs.values():
            yield from _of_graph(inner, scopes, imports)
        for name in node.outputs:
            if name and name in made:
                yield CHECKER, f"{label(node, index)} has the output {shown(name)}, a name that another value has"
            made.add(name)


def _since(node: Node, opsets: Mapping[str, int]) -> int | None:
    """Return the first opset with the definition of a node's operator, 0 without one; ``None`` if it is not known."""
    domain = "" if node.domain in STANDARD else node.domain
    opset = next(
        (version for name, version in opsets.items() if name == node.domain or (name in STANDARD and not domain)), 0
    )
    if domain not in _operators() or not opset:
        return None
    versions = _operators()[domain].get(node.operator, {})
    return max((int(version) for version in versions if int(version) <= opset), default=0)


@cache
def _operators() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the operators by domain, name and version, as `fixtures/onnx_operators.py` documents them."""
    operators: dict[str, dict[str, dict[str, Any]]] = json.loads(data_text("tieconv.formats", "onnx_operators.json"))
    return operators


def _of_operator(node: Node, domain: str, opset: int) -> Iterator[str]:
    versions = _operators()[domain].get(node.operator, {})
    since = max((int(version) for version in versions if int(version) <= opset), default=None)
    if since is None:
        if opset:
            yield f"uses an operator that the opset {opset} of {domain or 'ai.onnx'} does not have"
        return
    if versions[str(since)] is None:
        yield f"uses an operator that the opset {opset} of {domain or 'ai.onnx'} no longer has"
        return
    fewest, inputs, fewest_outputs, outputs, attributes = versions[str(since)]
    yield from _of_values(node.inputs, inputs, fewest, "input")
    yield from _of_values(node.outputs, outputs, fewest_outputs, "output")
    for name, type_ in attributes.items():
        if type_ < 0 and name not in node.types:
            yield f"has no attribute {name}, which is required"
        elif node.types.get(name) and node.types[name] != abs(type_):
            yield f"has the attribute {name} of another type"
    for name in node.types:
        if name not in attributes and not name.startswith("__"):  # names of a runtime's own
            yield f"has the attribute {shown(name) or '(empty)'}, which its operator does not have"


def _of_values(names: list[str], letters: str, fewest: int, noun: str) -> Iterator[str]:
    """Yield what is wrong with a node's inputs or outputs; ``letters`` is ``s``, ``o`` or ``v`` for each."""
    if len(names) < fewest:
        yield f"has {count(len(names), noun)}, fewer than {fewest}"
    elif len(names) > len(letters) and not letters.endswith("v"):
        yield f"has {count(len(names), noun)}, more than {len(letters)}"
    for number, (name, letter) in enumerate(zip(names, letters, strict=False)):
        if not name and letter == "s":
            yield f"leaves {noun} {number} empty, which is required"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, number in Counter(names).items() if number > 1]


def label(node: Node, index: int) -> str:
    """Return the words for a node in a sentence."""
    return f"node {index:,} ({shown(node.operator, 60)})"


STANDARD = {"", "ai.onnx"}


def _order_fault(graph: Graph, index: int, name: str) -> str:
    """Return the fault of the node at ``index``, which reads ``name`` before another node computes it."""
    node = graph.nodes[index]
    subject = label(node, index)
    if name in node.outputs:
        return f"{subject} reads {shown(name)}, its own output"
    maker = next((at for at, candidate in enumerate(graph.nodes) if name in candidate.outputs), None)
    if maker is None:
        return f"{subject} reads {shown(name)}, which is not an input, an initializer or the output of a node"
    if _reaches(graph.nodes, index, maker):
        return f"{subject} reads {shown(name)}, which depends on its own output: the nodes form a cycle"
    return f"{subject} reads {shown(name)} before node {maker:,} computes it: the nodes are not in topological order"


def _reaches(nodes: list[Node], start: int, goal: int) -> bool:
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
