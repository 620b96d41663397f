"""Predict what `onnx.checker` and ONNX Runtime refuse in a graph's structure, without importing either.

Source: `onnx/checker.cc` of onnx 1.23 and `core/graph/graph.cc` of ONNX Runtime 1.32. The definitions of operators
(number of inputs, attributes, types) are not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import islice

from tieconv.checkpoint.files.cautions import REFUSED_BY_READER, Caution
from tieconv.formats.onnx.message_reader import STRING
from tieconv.formats.onnx.messages import Graph, Model, Node, Tensor
from tieconv.formats.onnx.order import order_fault
from tieconv.formats.onnx.protobuf import BYTES
from tieconv.formats.onnx.tensor import TYPES
from tieconv.text import shown

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
    yield from _of_model(model)
    for tensor in model.tensors:
        yield from _of_tensor(tensor)
    yield from _of_main(model.graph, model)
    typed = model.ir_version >= _TYPED
    yield from _of_graph(model.graph, [], model.opsets.keys(), typed=typed)
    for name in _repeated(function.name for function in model.functions):
        yield CHECKER, f"two functions have the name {shown(name)}"
    for function in model.functions:
        yield from _of_graph(function, [], function.opsets, typed=typed)


def _of_model(model: Model) -> Iterator[Fault]:
    if model.ir_version < 1:
        yield CHECKER, "it has no IR version"
    elif model.ir_version > NEWEST_IR:
        yield SESSION, f"its IR version is {model.ir_version}, newer than {NEWEST_IR}"
    if model.ir_version >= _NO_OPSETS and not model.opsets:
        yield CHECKER, "it imports no opset"
    for domain, version in model.opsets.items():
        if version < 1 or (version > NEWEST_OPSET and domain in STANDARD):
            yield SESSION, f"it imports the unsupported opset {version} of {shown(domain) or 'ai.onnx'}"


def _of_tensor(tensor: Tensor) -> Iterator[Fault]:
    subject = f"the tensor {shown(tensor.name)}"
    if tensor.kind not in TYPES and tensor.kind != STRING:
        yield CHECKER, f"{subject} has the undefined element type {tensor.kind}"
    fields = {field[0] for field in tensor.typed} | ({_RAW} if tensor.raw is not None else set())
    for key in tensor.entries if tensor.external else ():
        if key in _PLACES and not tensor.entries[key]:
            yield SESSION, f"{subject} has an empty {key} in its external data"
        elif key not in _PLACES and not key.startswith("prepacked_"):
            yield SESSION, f"{subject} has the unknown key {shown(key) or '(empty)'} in its external data"
    if tensor.external and tensor.repeats:
        yield SESSION, f"{subject} has a repeated key in its external data"
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


def _of_graph(graph: Graph, outer: list[set[str]], imported: Set[str], *, typed: bool) -> Iterator[Fault]:
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
    yield from _of_nodes(graph, [*outer, made], imported, typed=typed)
    yield from _of_outputs(graph, [*outer, made])


def _of_main(graph: Graph, model: Model) -> Iterator[Fault]:
    if not graph.name:
        yield CHECKER, "its graph has no name"
    for name, element, shaped in graph.elements:
        subject = f"the input or output {shown(name) or '(empty)'}"
        if element not in TYPES and element != STRING:
            yield (
                CHECKER,
                f"{subject} has " + (f"the undefined element type {element}" if element else "no element type"),
            )
        elif not shaped:
            yield CHECKER, f"{subject} has no shape"
    if model.ir_version < _FREE_INITIALIZERS:
        inputs = set(graph.inputs)
        for tensor in graph.initializers:
            if tensor.name not in inputs:
                yield (
                    CHECKER,
                    f"the initializer {shown(tensor.name)} is not an input, as IR version {model.ir_version} demands",
                )


def _of_nodes(graph: Graph, scopes: list[set[str]], imported: Set[str], *, typed: bool) -> Iterator[Fault]:
    made = scopes[-1]
    for index, node in enumerate(graph.nodes):
        yield from _of_node(node, index, imported)
        for name in node.untyped if typed else ():
            yield CHECKER, f"{label(node, index)} has the attribute {shown(name) or '(empty)'} without a type"
        for name in node.inputs:
            if name and not any(name in scope for scope in scopes):
                yield CHECKER, order_fault(graph, index, name)
        for inner in node.graphs.values():
            yield from _of_graph(inner, scopes, imported, typed=typed)
        for name in node.outputs:
            if name and name in made:
                yield CHECKER, f"{label(node, index)} has the output {shown(name)}, a name that another value has"
            made.add(name)


def _of_node(node: Node, index: int, imported: Set[str]) -> Iterator[Fault]:
    if not node.operator:
        yield CHECKER, f"node {index} has no operator"
    elif not node.inputs and not node.outputs:
        yield CHECKER, f"{label(node, index)} has neither an input nor an output"
    if imported and node.domain not in imported and not (not node.domain and STANDARD & imported):
        yield (
            CHECKER,
            f"{label(node, index)} uses the opset of {shown(node.domain) or 'ai.onnx'}, which is not imported",
        )


def _of_outputs(graph: Graph, scopes: list[set[str]]) -> Iterator[Fault]:
    for name in graph.outputs:
        if not any(name in scope for scope in scopes):
            yield SESSION, f"no node computes its output {shown(name)}"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, number in Counter(names).items() if number > 1]


def label(node: Node, index: int) -> str:
    """Return the words for a node in a sentence."""
    return f"node {index:,} ({shown(node.operator, 60)})"


STANDARD = {"", "ai.onnx"}
