"""Match the scale factors and casts next to a head. They are rewritten with it, so that no bit changes.

ONNX Runtime fuses a constant factor before or after a MatMul into it (`FusedMatMul(alpha)`, matmul_scale_fusion.cc). It
also removes two casts in a row. It does neither across the Reshapes around a Gemm. So the factor becomes the Gemm's
``alpha``, and the casts swap with the Reshapes.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.share.uses import MATRIX, is_standard

_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The types whose factors an alpha, an F32 number, represents exactly."""


@record
class Around:
    """The product of ``x`` and ``alpha``, computed by the nodes from ``before`` to ``behind``.

    ``rank`` is the number of axes of ``x``, or ``None`` if it is unknown. ``narrow`` and ``widen`` are the casts
    directly before and after these nodes.
    """

    x: ir.Value
    rank: int | None
    alpha: float
    before: tuple[ir.Node, ...]
    behind: tuple[ir.Node, ...]
    narrow: ir.Node | None
    widen: ir.Node | None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that are rewritten with the product, first to last."""
        casts = [[] if node is None else [node] for node in (self.narrow, self.widen)]
        return (*casts[0], *self.before, *self.behind, *casts[1])


def around(node: ir.Node, dtype: ir.DataType) -> Around:
    """Return what surrounds a MatMul whose right operand is a matrix. ``dtype`` is the type of the MatMul."""
    x, final, alpha = node.inputs[0], node, np.float32(1)
    before: list[ir.Node] = []
    behind: list[ir.Node] = []
    assert x is not None
    # Go outwards as the session does: the order of the factors changes the last bit of their product.
    # A factor of one is skipped, because the session has already removed its node.
    while dtype in _NARROW:
        matched, turn = len(before) + len(behind), alpha
        while alpha == turn and (first := scale(_maker(x, node), alpha)) is not None:
            x, alpha = first.of, first.alpha
            before.insert(0, first.node)
        turn = alpha
        while alpha == turn and (after := scale(only_user(final), alpha)) is not None:
            final, alpha = after.node, after.alpha
            behind.append(after.node)
        if len(before) + len(behind) == matched:
            break
    narrow, widen = _cast(_maker(x, node)), _cast(only_user(final))
    rank = _rank(x) or (_rank(narrow.inputs[0]) if narrow is not None else None)
    if dtype is ir.DataType.FLOAT or rank == MATRIX:  # there are no Reshapes, or the casts need not move
        narrow = widen = None
    return Around(x, rank, float(alpha), tuple(before), tuple(behind), narrow, widen)


@record
class _Scale:
    """A factor. ``node`` multiplies ``of`` by a constant number; ``alpha`` is that number times the earlier ones."""

    node: ir.Node
    of: ir.Value
    alpha: np.float32


def scale(node: ir.Node | None, alpha: np.float32) -> _Scale | None:
    """Return the product or quotient with one constant number that ``alpha`` can include, or ``None``."""
    if node is None or not is_standard(node, "Mul", "Div"):
        return None
    for index in (1,) if node.op_type == "Div" else (0, 1):
        factor = node.inputs[1 - index]
        number = _number(node.inputs[index], factor)
        if number is not None and factor is not None:
            with np.errstate(all="ignore"):
                whole = alpha * (np.float32(1) / number if node.op_type == "Div" else number)
            return _Scale(node, factor, whole) if whole and isfinite(whole) else None
    return None


def _number(value: ir.Value | None, product: ir.Value | None) -> np.float32 | None:
    """Return the one number that a constant holds, if multiplying ``product`` by it adds no axis."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    rank = max(1, _rank(product) or 1)
    return np.float32(tensor.numpy().reshape(-1)[0]) if len(tensor.shape) <= rank else None


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _maker(value: ir.Value, node: ir.Node) -> ir.Node | None:
    """Return the node that computes the value, if it is in the same graph."""
    maker = value.producer()
    return maker if maker is not None and maker.graph is node.graph else None


def only_user(node: ir.Node) -> ir.Node | None:
    """Return the only node that reads what ``node`` computes, if it is in the same graph."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    return uses[0][0] if uses[0][0].graph is node.graph else None


def _cast(node: ir.Node | None) -> ir.Node | None:
    return node if node is not None and is_standard(node, "Cast") else None
