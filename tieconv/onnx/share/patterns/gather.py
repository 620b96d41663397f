"""Handle `Gather`: the embedding, along either axis of the matrix and in either of two exact types."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.onnx.share.patterns.interface import Target, dtype_of, replace
from tieconv.onnx.share.uses import Use, integer, is_standard


class Lookup:
    """A Gather of rows or columns.

    If the stored matrix is transposed, it gathers along the other axis and transposes the small result. If the stored
    matrix has another type, it casts the result.
    """

    def claims(self, use: Use) -> bool:
        return use.node is not None and is_standard(use.node, "Gather") and use.index == 0

    def refuses(self, use: Use, target: Target) -> str:
        assert use.node is not None
        if use.flipped and _rank(use.node.inputs[1]) is None:
            return "a Gather has indices of unknown rank"
        return ""

    def rewrite(self, use: Use, target: Target) -> None:
        node = use.node
        assert node is not None
        wanted = dtype_of(use, target.dtype)
        if not use.flipped and wanted == target.dtype:
            node.replace_input_with(0, target.value)
            return
        axis = integer(node, "axis", 0) % 2
        nodes = [ir.node("Gather", [target.value, node.inputs[1]], {"axis": 1 - axis if use.flipped else axis})]
        nodes[0].outputs[0].dtype = target.dtype
        if use.flipped:
            nodes.append(ir.node("Transpose", [nodes[-1].outputs[0]], {"perm": _turn(node, axis)}))
            nodes[-1].outputs[0].dtype = target.dtype
        if wanted != target.dtype:
            nodes.append(ir.node("Cast", [nodes[-1].outputs[0]], {"to": int(wanted)}))
        replace(node, nodes, target.names)


def _turn(node: ir.Node, axis: int) -> list[int]:
    """Return the permutation that restores the axis order of ``node`` after a Gather on the other axis.

    Rows of the transpose (axis 0) arrive as [C, indices…] and must become [indices…, C]. Columns (axis 1) need the
    inverse.
    """
    rank = _rank(node.inputs[1])
    assert rank is not None
    return [*range(1, rank + 1), 0] if axis == 0 else [rank, *range(rank)]


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)
