"""The messages of an ONNX model: structure in full, tensors as positions in the file.

Source: onnx.proto of onnx 1.23 (field numbers and types have never been reused).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tieconv.formats.onnx.protobuf import Field

FieldSpan = tuple[int, int]
"""Offsets of the first byte and behind the last byte of a field."""


@dataclass(slots=True)
class Tensor:
    """A tensor. ``raw`` is the position of its bytes; ``typed`` has the positions of its number fields.

    ``repeats`` is true if a key of its external data is repeated.
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
