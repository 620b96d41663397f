"""Read an ONNX model without the onnx package: the structure in full, tensors as byte ranges.

Source: onnx.proto of onnx 1.23 (field numbers and types have never been reused).
"""

from __future__ import annotations

from tieconv.formats.onnx.messages import Graph, Model, Node, Tensor
from tieconv.formats.onnx.protobuf import BYTES, VARINT, Field, Wire, signed

MAX_DEPTH = 64
"""The most levels of subgraphs."""
MAX_RANK = 64
STRING = 8
"""The element type of strings."""


def read_model(wire: Wire) -> Model:
    """Read the model of a file. Raises `UnreadableError` for a file that is not an ONNX model."""
    model, has_graph, version = Model(Graph()), False, ""
    for number, kind, start, end in wire.fields(0, wire.size):
        if number == 7 and kind == BYTES:
            if has_graph:
                wire.refuse("holds two graphs", "two-graphs")
            has_graph, model.graph = True, _graph(wire, start, end, model.tensors, 0)
        elif number == 1 and kind == VARINT:
            model.ir_version = signed(start)
        elif number == 2 and kind == BYTES:
            model.producer = wire.text(start, end)
        elif number == 3 and kind == BYTES:
            version = wire.text(start, end)
        elif number == 8 and kind == BYTES:
            domain, opset = _opset(wire, start, end)
            model.opsets[domain] = opset
        elif number == 25 and kind == BYTES:
            _function(wire, start, end, model)
        elif kind == BYTES:
            check_field(wire, start, end, MODEL.get(number))
    if not has_graph:
        wire.refuse("holds no graph, so it is not an ONNX model", "malformed")
    model.producer = " ".join(filter(None, (model.producer, version)))
    return model


def _opset(wire: Wire, start: int, end: int) -> tuple[str, int]:
    domain, version = "", 0
    for number, kind, value, stop in wire.fields(start, end):
        if number == 1 and kind == BYTES:
            domain = wire.text(value, stop)
        elif number == 2 and kind == VARINT:
            version = signed(value)
    return domain, version


def _function(wire: Wire, start: int, end: int, model: Model) -> None:
    body, names = Graph(), {1: "", 10: "", 13: ""}
    for number, kind, value, stop in wire.fields(start, end):
        if kind != BYTES:
            continue
        if number in names:  # name, domain and overload identify a function
            names[number] = wire.text(value, stop)
        elif number == 7:
            body.nodes.append(_node(wire, value, stop, model.tensors, 0))
        elif number in (4, 5):
            (body.inputs if number == 4 else body.outputs).append(wire.text(value, stop))
        elif number == 9:
            domain, opset = _opset(wire, value, stop)
            body.opsets[domain] = opset
        else:
            check_field(wire, value, stop, FUNCTION.get(number))
    body.name = ":".join((names[10], names[1], names[13]))
    model.functions.append(body)


def _graph(wire: Wire, start: int, end: int, tensors: list[Tensor], depth: int) -> Graph:
    if depth > MAX_DEPTH:
        wire.refuse(f"nests more than {MAX_DEPTH} graphs", "nesting")
    graph = Graph()
    for number, kind, value, stop in wire.fields(start, end):
        if kind != BYTES:
            continue
        if number == 1:
            graph.nodes.append(_node(wire, value, stop, tensors, depth))
        elif number == 2:
            graph.name = wire.text(value, stop)
        elif number == 5:
            graph.initializers.append(_tensor(wire, value, stop, tensors))
        elif number in (11, 12):
            check(wire, value, stop, VALUE)
            name = _name(wire, value, stop)
            (graph.inputs if number == 11 else graph.outputs).append(name)
            element = _element(wire, value, stop)
            if element is not None:
                graph.elements.append((name, *element))
        elif number == 15:
            graph.sparse += 1
            graph.sparse_names.append(_sparse(wire, value, stop, tensors))
        else:
            check_field(wire, value, stop, GRAPH.get(number))
    return graph


def _name(wire: Wire, start: int, end: int) -> str:
    """Return the name of a value."""
    places = [(value, stop) for number, kind, value, stop in wire.fields(start, end) if (number, kind) == (1, BYTES)]
    return wire.text(*places[-1]) if places else ""


_TENSOR_TYPES = (1, 8)
"""The fields of a type for tensors and sparse tensors."""
_CONTAINER_TYPES = {4: 1, 5: 2, 9: 1, 7: 1}
"""Maps the field of a sequence, map, optional or opaque type to the field with its content's type."""


def _element(wire: Wire, start: int, end: int) -> tuple[int | None, bool] | None:
    """Return a tensor's element type and whether it has a shape, or ``None`` for other values.

    The element type is ``None`` if the value has no type. It is 0 if the type has no element type.
    """
    types = [(value, stop) for number, kind, value, stop in wire.fields(start, end) if (number, kind) == (2, BYTES)]
    element: tuple[int | None, bool] | None = (None, False)
    for number, kind, value, stop in wire.fields(*types[-1]) if types else ():
        if kind == BYTES and number in _TENSOR_TYPES:
            fields = list(wire.fields(value, stop))
            elements = [element_type for field_, each, element_type, _ in fields if (field_, each) == (1, VARINT)]
            element = elements[-1] if elements else 0, any(field_ == 2 for field_, *_ in fields)
        elif kind == BYTES and number in _CONTAINER_TYPES:
            inner = {field_ for field_, each, *_ in wire.fields(value, stop) if each == BYTES}
            element = None if _CONTAINER_TYPES[number] in inner else (0, False)
    return element


def _sparse(wire: Wire, start: int, end: int, tensors: list[Tensor]) -> str:
    """Read the tensors of a sparse tensor, and return its name, which is that of its values."""
    name = ""
    for number, kind, value, stop in wire.fields(start, end):
        if number in (1, 2) and kind == BYTES:
            tensor = _tensor(wire, value, stop, tensors)
            name = tensor.name if number == 1 else name
    return name


def _node(wire: Wire, start: int, end: int, tensors: list[Tensor], depth: int) -> Node:
    node = Node()
    for number, kind, value, stop in wire.fields(start, end):
        if kind != BYTES:
            continue
        if number in (1, 2):
            (node.inputs if number == 1 else node.outputs).append(wire.text(value, stop))
        elif number == 3:
            node.name = wire.text(value, stop)
        elif number == 4:
            node.operator = wire.text(value, stop)
        elif number == 5:
            _attribute(wire, value, stop, node, tensors, depth)
        elif number == 7:
            node.domain = wire.text(value, stop)
        elif number == 8:
            node.overload = wire.text(value, stop)
        else:
            check_field(wire, value, stop, NODE.get(number))
    if node.standard != "Constant" or not node.outputs:
        node.constant = None
    elif node.constant is not None:
        node.constant.name = node.outputs[0]
    return node


_NUMBERS = {"value_float": (2, 1, 4), "value_int": (3, 7, 7), "value_floats": (7, 1, 4), "value_ints": (8, 7, 7)}
"""Attributes of Constant: their field, their element type, and the field in which a tensor has such numbers."""
_STRINGS = {"value_string": 4, "value_strings": 9}


def _attribute(wire: Wire, start: int, end: int, node: Node, tensors: list[Tensor], depth: int) -> None:
    name, numbers, graphs, type_ = "", [], [], 0
    fields: list[Field] = []
    for field_ in wire.fields(start, end):
        fields.append(field_)
        number, kind, value, stop = field_
        if number == 1 and kind == BYTES:
            name = wire.text(value, stop)
        elif number == 20 and kind == VARINT:
            type_ = value
        elif number == 21 and kind == BYTES:
            node.parameters |= stop > value
        elif number in (3, 8):
            numbers += [signed(unsigned) for unsigned in wire.numbers(field_)]
        elif number in (5, 10) and kind == BYTES:
            tensor = _tensor(wire, value, stop, tensors)
            node.constant = tensor if number == 5 else node.constant
        elif number in (6, 11) and kind == BYTES:
            graphs.append(_graph(wire, value, stop, tensors, depth + 1))
        elif number in (22, 23) and kind == BYTES:
            _sparse(wire, value, stop, tensors)
            node.sparse += 1
        elif number == 7 and kind == BYTES and (stop - value) % 4:
            wire.refuse(f"ends inside a number at byte {stop:,}", "truncated")
        elif kind == BYTES:
            check_field(wire, value, stop, ATTRIBUTE.get(number))
    node.integers[name] = numbers
    if name == "equation":
        texts = [wire.text(value, stop) for number, kind, value, stop in fields if (number, kind) == (4, BYTES)]
        node.equation = texts[-1] if texts else ""
    if name in _NUMBERS or name in _STRINGS:
        node.constant = _listed(name, fields, (start, end), len(numbers))
    node.types[name] = type_
    for position, graph in enumerate(graphs):
        node.graphs[name if not position else f"{name}.{position}"] = graph


def _listed(name: str, fields: list[Field], whole: tuple[int, int], integers: int) -> Tensor:
    """Return the tensor that a Constant lists as numbers or strings in an attribute."""
    source, element, target = _NUMBERS.get(name) or (_STRINGS[name], STRING, 0)
    places = [(target, *field[1:]) for field in fields if field[0] == source]
    if element == STRING:
        return Tensor(kind=STRING, dims=[len(places)] if name.endswith("s") else [], whole=whole)
    count = integers if element == 7 else sum(1 if kind != BYTES else (end - at) // 4 for _, kind, at, end in places)
    return Tensor(kind=element, dims=[count] if name.endswith("s") else [], typed=places, whole=whole)


def _tensor(wire: Wire, start: int, end: int, tensors: list[Tensor]) -> Tensor:
    tensor = Tensor(whole=(start, end))
    for field_ in wire.fields(start, end):
        number, kind, value, stop = field_
        if number == 1:
            tensor.dims += [signed(side) for side in wire.numbers(field_)]
        elif number == 2 and kind == VARINT:
            tensor.kind = value
        elif number in (4, 5, 6, 7, 10, 11):
            tensor.typed.append(field_)
        elif number == 8 and kind == BYTES:
            tensor.name = wire.text(value, stop)
        elif number == 9 and kind == BYTES:
            tensor.raw = (value, stop)
        elif number == 13 and kind == BYTES:
            key, text = _entry(wire, value, stop)
            tensor.repeats |= key in tensor.entries
            tensor.entries[key] = text
        elif number == 14 and kind == VARINT:
            tensor.external = value == 1
        elif kind == BYTES:
            check_field(wire, value, stop, TENSOR.get(number))
    if len(tensor.dims) > MAX_RANK:
        wire.refuse(f"has a tensor with {len(tensor.dims):,} dimensions, more than {MAX_RANK}", "rank")
    tensors.append(tensor)
    return tensor


def _entry(wire: Wire, start: int, end: int) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    for number, kind, value, stop in wire.fields(start, end):
        if number in texts and kind == BYTES:
            texts[number] = wire.text(value, stop)
    return texts[1], texts[2]


# --- messages that tieconv does not use. Their encoding is checked, as protobuf's parsers do.

Message = dict[int, "Message"]
_MAX_DEPTH = 64

_ENTRY: Message = {}
_DIMENSIONS: Message = {1: {}}
_TYPE: Message = {1: {2: _DIMENSIONS}, 8: {2: _DIMENSIONS}, 7: {}}
_TYPE |= {4: {1: _TYPE}, 5: {2: _TYPE}, 9: {1: _TYPE}}
VALUE: Message = {2: _TYPE, 4: _ENTRY}
_SHARDING: Message = {3: {2: {}}, 4: {1: {}}}
TENSOR: Message = {3: {}, 16: _ENTRY}
NODE: Message = {9: _ENTRY, 10: {2: _SHARDING}}
ATTRIBUTE: Message = {14: _TYPE, 15: _TYPE}
GRAPH: Message = {13: VALUE, 14: {2: _ENTRY}, 16: _ENTRY}
FUNCTION: Message = {12: VALUE, 14: _ENTRY}
MODEL: Message = {14: _ENTRY, 26: {}}


def check_field(wire: Wire, start: int, end: int, message: Message | None) -> None:
    """Refuse a field that is not a well-formed ``message``. ``None`` means that the field holds no message."""
    if message is not None:
        check(wire, start, end, message)


def check(wire: Wire, start: int, end: int, message: Message, depth: int = 0) -> None:
    """Refuse the message between two offsets unless it and its inner messages are well-formed."""
    if depth > _MAX_DEPTH:
        wire.refuse(f"nests more than {_MAX_DEPTH} messages", "nesting")
    for number, kind, value, stop in wire.fields(start, end):
        inner = message.get(number)
        if inner is not None and kind == BYTES:
            check(wire, value, stop, inner, depth + 1)
