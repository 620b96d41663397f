"""Make an embedding read the rows of a head's quantised matrix, and dequantise only these rows.

GatherBlockQuantized and MatMulNBits demand different shapes of their codes. A session stores a reshaped constant again.
So the rows are gathered first, and reshaped afterwards, which copies nothing that is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tieconv.onnx.graph.model import sides
from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.patterns.interface import Names, replace
from tieconv.onnx.share.quantised.block_tables import LOOKUP, Table


class _Builder:
    """Nodes in the order of their computation, and the constants that they read."""

    def __init__(self, graph: ir.Graph, names: Names, hint: str) -> None:
        self.nodes: list[ir.Node] = []
        self._graph = graph
        self._names = names
        self._hint = hint

    def add(self, operator: str, inputs: Sequence[ir.Value | None], **attributes: int | str) -> ir.Value:
        """Append a node and return its output."""
        node = ir.node(operator, inputs, attributes)
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, values: int | Sequence[int], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Return a small initializer."""
        name = self._names.free(f"{self._hint}/{values}")
        tensor = ir.tensor(values, dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(sides(tensor.shape)), type=ir.TensorType(dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value


def look_up_rows(lookup: Table, head: Table, names: Names) -> None:
    """Replace the node of ``lookup`` by nodes that look up the same rows of ``head``.

    Each element is computed as before: the code minus the zero point, then one product with the scale.
    """
    node = lookup.node
    assert isinstance(node.graph, ir.Graph)
    builder = _Builder(node.graph, names, str(node.outputs[0].name))
    ids = node.inputs[1]
    assert ids is not None
    if head.zeros is None:
        _symmetric(builder, head, ids)
    else:
        _with_zero_points(builder, head, head.zeros, ids)
    replace(node, builder.nodes, names)


def _symmetric(builder: _Builder, head: Table, ids: ir.Value) -> None:
    """Let GatherBlockQuantized dequantise the gathered rows."""
    codes = builder.add("Gather", [head.codes, ids])
    codes = builder.add("Reshape", [codes, builder.constant([-1, head.blocks * head.block * head.bits // 8])])
    scales = builder.add("Gather", [head.scales, ids])
    scales = builder.add("Reshape", [scales, builder.constant([-1, head.blocks])])
    ends = builder.constant(0), builder.add("Size", [ids]), builder.constant(1)
    rows = builder.add("Range", [*ends])
    rows = builder.add("Reshape", [rows, builder.add("Shape", [ids])], allowzero=1)
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": head.block, "bits": head.bits}
    builder.nodes.append(ir.node(LOOKUP, [codes, rows, scales], attributes, domain=MICROSOFT))


def _with_zero_points(builder: _Builder, head: Table, zeros: ir.Value, ids: ir.Value) -> None:
    """Compute (code − zero point) × scale. A GatherBlockQuantized accepts zero points of constant shape only."""
    whole = builder.add("Shape", [ids])
    dtype = int(head.scales.dtype or ir.DataType.FLOAT)
    blocks = builder.constant([head.blocks, head.block])
    codes = _unpacked(builder, builder.add("Gather", [head.codes, ids]), head.bits)
    codes = builder.add("Reshape", [codes, builder.add("Concat", [whole, blocks], axis=0)], allowzero=1)
    points = _unpacked(builder, builder.add("Gather", [zeros, ids]), head.bits)
    width = builder.constant([-1 if head.bits == 8 else head.blocks + head.blocks % 2])
    if head.bits != 8:
        points = builder.add("Reshape", [points, builder.add("Concat", [whole, width], axis=0)], allowzero=1)
        if head.blocks % 2:
            span = [builder.constant(values) for values in ([0], [head.blocks], [-1])]
            points = builder.add("Slice", [points, *span])
    end = builder.constant([-1])
    points = builder.add("Unsqueeze", [points, end])
    scales = builder.add("Unsqueeze", [builder.add("Gather", [head.scales, ids]), end])
    exact = [builder.add("Cast", [value], to=dtype) for value in (codes, points)]
    product = builder.add("Mul", [builder.add("Sub", exact), scales])
    row = builder.constant([head.blocks * head.block])
    builder.add("Reshape", [product, builder.add("Concat", [whole, row], axis=0)], allowzero=1)


def _unpacked(builder: _Builder, packed: ir.Value, bits: int) -> ir.Value:
    """Return one byte for each code. If a byte holds two codes, they are on a new last axis, the lower half first."""
    if bits == 8:
        return packed
    last_axis = builder.constant([-1])
    low = builder.add("BitwiseAnd", [packed, builder.constant(15, ir.DataType.UINT8)])
    high = builder.add("BitShift", [packed, builder.constant(4, ir.DataType.UINT8)], direction="RIGHT")
    halves = [builder.add("Unsqueeze", [half, last_axis]) for half in (low, high)]
    return builder.add("Concat", halves, axis=-1)
