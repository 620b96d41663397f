"""Read an ONNX model without the onnx package: the structure in full, tensors as byte ranges.

Source: onnx.proto of onnx 1.23 (field numbers and types have never been reused).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

MAX_DEPTH = 64
"""The most levels of subgraphs, and of messages."""
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
            check(wire, start, end, MODEL.get(number))
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
            check(wire, value, stop, FUNCTION.get(number))
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
            check(wire, value, stop, GRAPH.get(number))
    return graph


def _name(wire: Wire, start: int, end: int) -> str:
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
            check(wire, value, stop, NODE.get(number))
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
            check(wire, value, stop, ATTRIBUTE.get(number))
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
            tensor.moved |= key == "location" and key in tensor.entries
            tensor.entries[key] = text
        elif number == 14 and kind == VARINT:
            tensor.external = value == 1
        elif kind == BYTES:
            check(wire, value, stop, TENSOR.get(number))
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


Message = dict[int, "Message"]

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


def check(wire: Wire, start: int, end: int, message: Message | None, depth: int = 0) -> None:
    """Refuse a field unless it and its inner messages are well-formed. ``None``: the field holds no message."""
    if message is None:
        return
    if depth > MAX_DEPTH:
        wire.refuse(f"nests more than {MAX_DEPTH} messages", "nesting")
    for number, kind, value, stop in wire.fields(start, end):
        if kind == BYTES:
            check(wire, value, stop, message.get(number), depth + 1)


# The messages of an ONNX model: structure in full, tensors as positions in the file.
#
# Source: onnx.proto of onnx 1.23 (field numbers and types have never been reused).

FieldSpan = tuple[int, int]
"""Offsets of the first byte and behind the last byte of a field."""


@dataclass(slots=True)
class Tensor:
    """A tensor. ``raw`` is the position of its bytes; ``typed`` has the positions of its number fields.

    ``moved`` is true if its external data has two locations.
    """

    name: str = ""
    kind: int = 0
    dims: list[int] = field(default_factory=list)
    raw: FieldSpan | None = None
    typed: list[Field] = field(default_factory=list)
    external: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    moved: bool = False
    whole: FieldSpan = (0, 0)


@dataclass(slots=True)
class Node:
    """A node: its inputs, outputs, integer attributes and subgraphs.

    ``types`` has the type number of each attribute, 0 for one without a type. ``constant`` is the value of a Constant
    node, and ``equation`` that of an Einsum. ``sparse`` is the number of sparse tensors. ``parameters`` is
    true if the caller of a function sets an attribute.
    """

    operator: str = ""
    name: str = ""
    domain: str = ""
    overload: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    integers: dict[str, list[int]] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    constant: Tensor | None = None
    sparse: int = 0
    equation: str = ""
    parameters: bool = False

    @property
    def standard(self) -> str:
        """The operator's name, with its domain unless that is the standard domain.

        An operator whose attributes the caller sets gets another name, because its meaning is not known.
        """
        name = self.operator if self.domain in ("", "ai.onnx") else f"{self.domain}.{self.operator}"
        return f"{name} with parameters" if self.parameters else name


@dataclass(slots=True)
class Graph:
    """A graph. Sparse initializers are counted, not read.

    ``elements`` has the name, element type and presence of a shape for each input and output. ``opsets`` has the
    operator sets that a function imports, with their versions.
    """

    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    sparse: int = 0
    sparse_names: list[str] = field(default_factory=list)
    elements: list[tuple[str, int | None, bool]] = field(default_factory=list)
    opsets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """A model. ``tensors`` includes the tensors of attributes and functions.

    ``functions`` has the bodies of its functions. The name of a body is ``domain:operator:overload``.
    """

    graph: Graph
    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    functions: list[Graph] = field(default_factory=list)


# Read protocol buffers field by field. No number in the file decides how much memory is allocated.
#
# Source: the encoding page of protobuf.dev. Groups are refused, because no current schema writes them.

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""
Field = tuple[int, int, int, int]
"""Field number, wire type, and two numbers.

The numbers are the value and the offset behind the field. For a field with a length they are the offsets of its start
and end.
"""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 600_000
"""The most fields of one file. Graphs of language models have a quarter of this."""
MAX_TEXT = 65_535
_WINDOW = 1 << 20
_SPARSE = 4096
MAX_JUMPS = 4000
"""The most reads after skipped fields of a remote file. Each read is a separate request."""
_FIELD_NUMBERS = 1 << 29
"""All field numbers are smaller than this."""
_LONGEST = 20
"""The most bytes of a tag and its varint."""


class Wire:
    """Reads one file as messages. Checks every length against the enclosing message."""

    def __init__(self, pread: Pread, size: int, name: str, noun: str, *, sparse: bool = False) -> None:
        """Open a file. If ``sparse`` is true, read little after a skipped field; the window grows with each read."""
        self._pread, self.size, self.name, self._noun = pread, size, name, noun
        self._start, self._window = 0, b""
        self._left = MAX_FIELDS
        self.is_utf8 = True
        """Whether all strings so far are UTF-8, as the encoding demands."""
        self._least = self._next = _SPARSE if sparse else _WINDOW
        self._jumps = MAX_JUMPS if sparse else MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets."""
        position = start
        while position < end:
            self._left -= 1
            if self._left < 0:
                self.refuse(f"has more than {MAX_FIELDS:,} fields", "fields")
            tag, position = self.varint(position, end)
            number, kind = tag >> 3, tag & 7
            if not 0 < number < _FIELD_NUMBERS:
                why = f"holds the invalid field number {number} at byte {position:,}, or is not an {self._noun}"
                self.refuse(why, "truncated")
            if kind == VARINT:
                value, position = self.varint(position, end)
                yield number, kind, value, position
                continue
            if kind == BYTES:
                length, position = self.varint(position, end)
            elif kind in (FIXED32, FIXED64):
                length = 4 if kind == FIXED32 else 8
            else:
                self.refuse(f"holds the unknown wire type {kind} at byte {position:,}", "wire-type")
            if length > end - position:
                self.refuse(f"ends inside a field at byte {position:,}, or is not an {self._noun}", "truncated")
            yield number, kind, position, position + length
            position += length

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the number at ``position``, and the offset behind it."""
        at = position - self._start
        if at < 0 or (at + _LONGEST > len(self._window) and self._start + len(self._window) < self.size):
            goes_on = 0 <= at <= len(self._window)
            self._next = min(self._next * 2, _WINDOW) if goes_on and self._window else self._least
            self._start, at = position, 0
            self._jumps -= 1
            if self._jumps < 0:
                problem = f"{shown(self.name)} needs more than {MAX_JUMPS:,} requests on the Hub"
                hint = "fetch the model and give the local directory: hf download ORG/NAME --local-dir DIR"
                raise UnreadableError(problem, hint, "onnx.requests")
            self._window = self._pread(self._next, position)
        value = shift = 0
        for byte in self._window[at : at + min(10, end - position)]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + shift // 7
        raise self._error(f"ends inside a number at byte {position:,}, or is not an {self._noun}", "truncated")

    def take(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        at = start - self._start
        if at >= 0 and end - self._start <= len(self._window):
            return self._window[at : at + end - start]
        return self._pread(end - start, start)

    def text(self, start: int, end: int) -> str:
        """Return a string. Bytes that are not UTF-8 become backslash escapes."""
        if end - start > MAX_TEXT:
            self.refuse(f"has a name of {end - start:,} bytes", "name-length")
        raw = self.take(start, end)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.is_utf8 = False
            return raw.decode("utf-8", errors="backslashreplace")

    def numbers(self, field: Field) -> Iterator[int]:
        """Yield the entries of a repeated integer, packed or not."""
        _, kind, value, end = field
        if kind == VARINT:
            yield value
        while kind == BYTES and value < end:
            self._left -= 1
            if self._left < 0:
                self.refuse(f"has more than {MAX_FIELDS:,} fields", "fields")
            number, value = self.varint(value, end)
            yield number

    def refuse(self, why: str, code: str) -> NoReturn:
        raise self._error(why, code)

    def _error(self, why: str, code: str) -> UnreadableError:
        return UnreadableError(f"{shown(self.name)} {why}", "fetch or export the model again", f"onnx.{code}")


def signed(value: int) -> int:
    """Convert a varint to a signed 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value
