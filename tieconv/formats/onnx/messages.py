"""An ONNX model as messages: structure in full, tensors as places in the file.

Source: onnx.proto of onnx 1.23 (field numbers and types have never been reused).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tieconv.formats.onnx.protobuf import Field

FieldSpan = tuple[int, int]
"""First byte and last byte + 1 of a field."""


@dataclass(slots=True)
class Tensor:
    """A tensor: ``raw`` is where its bytes lie in the file, ``typed`` where its entries do, by field number.

    ``repeats`` tells that an entry about external data stands twice.
    """

    name: str = ""
    kind: int = 0
    dims: list[int] = field(default_factory=list)
    raw: FieldSpan | None = None
    typed: list[Field] = field(default_factory=list)
    external: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    repeats: bool = False
    whole: FieldSpan = (0, 0)


@dataclass(slots=True)
class Node:
    """A node: what it reads and makes, its integer attributes, and the graphs inside it.

    ``untyped`` are the names of attributes that do not say their type.
    """

    operator: str = ""
    name: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    integers: dict[str, list[int]] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    untyped: tuple[str, ...] = ()

    @property
    def standard(self) -> str:
        """The operator's name where it is one of the standard; else with its domain."""
        return self.operator if self.domain in ("", "ai.onnx") else f"{self.domain}.{self.operator}"


@dataclass(slots=True)
class Graph:
    """A graph. Sparse initializers are counted, not read.

    ``elements`` are the element types of inputs and outputs, as `message_reader` reads them, and whether a shape is
    given; ``opsets`` the operator sets that a function imports.
    """

    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    sparse: int = 0
    sparse_names: list[str] = field(default_factory=list)
    elements: list[tuple[str, int | None, bool]] = field(default_factory=list)
    opsets: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Model:
    """A model; ``tensors`` are all of them, those of attributes and functions included.

    ``functions`` are the bodies of its functions.
    """

    graph: Graph
    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    functions: list[Graph] = field(default_factory=list)
