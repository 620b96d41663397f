"""What stands around a head and has to be rewritten with it, so that a session computes the same bits.

ONNX Runtime fuses a constant factor before or behind a MatMul into it (`FusedMatMul(alpha)`, matmul_scale_fusion.cc)
and drops a pair of casts with nothing between them. It does neither through the Reshapes around a Gemm, so the
factor becomes the Gemm's own ``alpha`` and the casts change places with the Reshapes.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.share.uses import MATRIX, is_standard

_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The types whose factors an alpha, an F32 number, holds exactly."""


@record
class Around:
    """A product of ``x`` times ``alpha``: what the nodes from ``before``, the first, to ``behind``, the last, compute.

    ``rank`` is the number of axes of ``x``, ``None`` where nothing tells it. ``narrow`` and ``widen`` are the casts
    directly before and behind it all.
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
    """What stands around a MatMul whose right-hand side is a matrix; ``dtype`` is what it computes in."""
    x, final, alpha = node.inputs[0], node, np.float32(1)
    before: list[ir.Node] = []
    behind: list[ir.Node] = []
    assert x is not None
    # From the inside out, as the session does it: the order of the factors shows in the last bit of their product.
    # A factor of one has no turn, since the session drops its node beforehand.
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
    if dtype is ir.DataType.FLOAT or rank == MATRIX:  # there are no Reshapes, or no casts worth a change of places
        narrow = widen = None
    return Around(x, rank, float(alpha), tuple(before), tuple(behind), narrow, widen)


@record
class _Scale:
    """``node`` is a product of ``of`` and a constant number; ``alpha`` is that number times those taken before."""

    node: ir.Node
    of: ir.Value
    alpha: np.float32


def scale(node: ir.Node | None, alpha: np.float32) -> _Scale | None:
    """A product or a quotient with one constant number, which ``alpha`` can take in; ``None`` for any other node."""
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
    """The one number that a constant holds, where multiplying ``product`` by it adds no axis."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    rank = max(1, _rank(product) or 1)
    return np.float32(tensor.numpy().reshape(-1)[0]) if len(tensor.shape) <= rank else None


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _maker(value: ir.Value, node: ir.Node) -> ir.Node | None:
    """What computes the value, in the node's own graph."""
    maker = value.producer()
    return maker if maker is not None and maker.graph is node.graph else None


def only_user(node: ir.Node) -> ir.Node | None:
    """The one node of the same graph that reads what the node computes."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    return uses[0][0] if uses[0][0].graph is node.graph else None


def _cast(node: ir.Node | None) -> ir.Node | None:
    return node if node is not None and is_standard(node, "Cast") else None
