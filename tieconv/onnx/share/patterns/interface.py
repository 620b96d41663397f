"""Define what every pattern can do: check whether a node can read the target, and rewrite the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.onnx.share.uses import Use


@dataclass
class Names:
    """Names that are free in a model."""

    model: ir.Model
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for graph in self.model.graphs():
            self.taken |= {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
            for node in graph:
                self.taken |= {value.name for value in node.outputs if value.name}
                self.taken.add(node.name or "")

    def free(self, wanted: str) -> str:
        """Return ``wanted``, or its first numbered variant that is free."""
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name


@record
class Target:
    """The initializer that stays, and how a head will read it."""

    value: ir.Value
    dtype: ir.DataType
    form: HeadForm
    opset: int
    names: Names


class Pattern(Protocol):
    """One kind of node that reads a matrix.

    ``use.flipped`` is relative to the target: true if the node reads the transpose of the target.
    """

    def claims(self, use: Use) -> bool:
        """Return whether the node is of this kind."""
        ...

    def refuses(self, use: Use, target: Target) -> str:
        """Return why the node cannot read the target; empty if it can."""
        ...

    def rewrite(self, use: Use, target: Target) -> None:
        """Make the node read the target. Its outputs keep their names, types and shapes."""
        ...


def replace(old: ir.Node, nodes: Sequence[ir.Node], names: Names) -> None:
    """Replace ``old`` by ``nodes``. The last node takes over its output, name and metadata."""
    graph, final = old.graph, nodes[-1]
    assert graph is not None
    for node in nodes[:-1]:
        node.name = names.free(f"{old.name or old.op_type}/{node.op_type}")
        node.outputs[0].name = names.free(f"{old.outputs[0].name}/{node.op_type}")
    final.name = old.name
    final.doc_string = old.doc_string
    final.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, old, [old], nodes, old.outputs, final.outputs)


def dtype_of(use: Use, default: ir.DataType) -> ir.DataType:
    """Return the type that the node reads."""
    if use.dtype is not None:
        return use.dtype
    value = use.node.inputs[use.index] if use.node is not None else None
    return default if value is None or value.dtype is None else value.dtype


def constant(node: ir.Node, values: Sequence[int], names: Names, hint: str) -> ir.Value:
    """Return a small int64 initializer in the node's graph."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = names.free(f"{node.outputs[0].name}/{hint}")
    tensor = ir.tensor(list(values), dtype=ir.DataType.INT64, name=name)
    value = ir.Value(name=name, shape=ir.Shape([len(values)]), type=ir.TensorType(ir.DataType.INT64))
    value.const_value = tensor
    graph.register_initializer(value)
    return value
