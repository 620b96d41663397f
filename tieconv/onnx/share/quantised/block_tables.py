"""Find the matrices that GatherBlockQuantized and MatMulNBits read: codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph.model import sides
from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.uses import integer, is_standard

LOOKUP, PRODUCT = "GatherBlockQuantized", "MatMulNBits"
_CODES, _LOOKUP_SCALES, _PRODUCT_SCALES, _PERMUTED = 0, 2, 2, 4
_STEPS = 8


@record
class Table:
    """A matrix [``rows``, ``blocks`` × ``block``] that ``node`` reads. ``bits`` is the width of a code.

    ``zeros`` is ``None`` if the node subtracts half of the range from each code. ``shaped`` is true if the node reads
    the codes through a Reshape.
    """

    node: ir.Node
    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    rows: int
    blocks: int
    block: int
    bits: int
    shaped: bool = False

    @property
    def parts(self) -> tuple[ir.Value, ...]:
        """Codes, scales, and zero points if there are any."""
        return (self.codes, self.scales, *(() if self.zeros is None else (self.zeros,)))

    @property
    def nbytes(self) -> int:
        return sum(nbytes(part) for part in self.parts)


def nbytes(value: ir.Value) -> int:
    """Return the bytes of an initializer."""
    assert value.const_value is not None
    return value.const_value.nbytes


def lookups(model: ir.Model) -> Iterator[Table]:
    """Yield the matrices of which nodes look up whole rows, if each row is quantised in blocks of uint8 codes."""
    for node in _nodes(model, LOOKUP):
        if integer(node, "gather_axis", 0) != 0 or integer(node, "quantize_axis", 1) not in (1, -1):
            continue
        table = _table(node, (_CODES, _LOOKUP_SCALES, 3))
        if table is not None:
            yield table


def heads(model: ir.Model) -> Iterator[Table]:
    """Yield the matrices of products. A product that permutes its columns is left out."""
    for node in _nodes(model, PRODUCT):
        table = None if any(node.inputs[_PERMUTED : _PERMUTED + 1]) else _table(node, (1, _PRODUCT_SCALES, 3))
        if table is not None:
            yield table


def _nodes(model: ir.Model, operator: str) -> Iterator[ir.Node]:
    return (node for graph in model.graphs() for node in graph if (node.domain, node.op_type) == (MICROSOFT, operator))


def _table(node: ir.Node, indices: tuple[int, int, int]) -> Table | None:
    initializers = [_initializer(node.inputs[index]) if index < len(node.inputs) else None for index in indices]
    codes, scales, zeros = initializers
    third = len(node.inputs) > indices[2] and node.inputs[indices[2]] is not None
    if codes is None or scales is None or (third and zeros is None) or codes.dtype is not ir.DataType.UINT8:
        return None
    assert codes.const_value is not None and scales.const_value is not None
    bits, block = integer(node, "bits", 4), integer(node, "block_size", 128)
    rows = integer(node, "N", sides(codes.const_value.shape)[0])
    blocks, rest = divmod(scales.const_value.size, rows)
    if rest or rows * blocks * block * bits != codes.const_value.nbytes * 8:
        return None
    return Table(node, codes, scales, zeros, rows, blocks, block, bits, codes is not node.inputs[indices[0]])


def _initializer(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer behind a value, also through Identity and a Reshape."""
    for _ in range(_STEPS):
        if value is None or value.is_graph_input():
            return None
        node = value.producer()
        if node is None:
            return value if value.is_initializer() and value.const_value is not None else None
        if not is_standard(node, "Identity", "Reshape"):
            return None
        value = node.inputs[0]
    return None
