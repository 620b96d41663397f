"""Find neighbours of a Gemm that a session may round differently: factors that stay nodes, and F16 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.share.find import MATRIX, describe, integer, is_standard

_PLAIN = ("Add", "Sub", "Mul", "Div", "Tanh", "Cast")
"""Operators without an F16 kernel in ONNX Runtime's CPU provider, which computes them in F32."""


FUSED_F64 = " in F64 (fused by 1.31.1, not by 1.32.0)"
"""Which measured releases of ONNX Runtime fuse a factor into a MatMul of F64."""

_HALF = {ir.DataType.FLOAT16, ir.DataType.UNDEFINED}
"""F16, or a type that the graph does not declare and that may be F16."""


def beside(node: ir.Node, dtype: ir.DataType) -> str:
    """Return what a session may round differently next to a head between Reshapes; empty if nothing.

    A factor that the Gemm cannot include is no longer fused by the session. That is a factor that may not be one
    number, or a factor in F64. ONNX Runtime 1.32.0 never fuses a factor in F64.

    The CPU provider computes F16 in F32 and skips the rounding between two nodes without an F16 kernel
    (insert_cast_transformer.cc). It also computes a node with an F16 kernel in F32 if no neighbour has such a kernel.
    The Reshapes are such neighbours.
    """
    surroundings = around(node, dtype)
    final = (node, *surroundings.behind)[-1]
    maker, reader = surroundings.x.producer(), only_user(final)
    first, after = made_by(maker), read_by(reader, dtype)
    reason = _factor(made_by(first, undeclared=True), after) or _across_casts(first, after, dtype)
    if reason and dtype is ir.DataType.DOUBLE:
        return reason + FUSED_F64
    if reason or dtype is not ir.DataType.FLOAT16:
        return reason
    if len(surroundings.before) + len(surroundings.behind) > 1:
        return "several factors"
    if _reads_again(node, (*surroundings.before, *surroundings.behind)):
        return "a factor that another node reads too"
    if surroundings.rank == MATRIX:
        return ""
    if maker is not None and (maker is not first or not is_standard(maker, *_PLAIN)) and not _looks_up(maker):
        return describe(maker)
    if after is not None and after is not reader and is_standard(after, "Cast"):
        return describe(after)
    readers = list(_readers(final.outputs[0], dtype))
    if len(readers) != 1:
        return f"a product with {len(readers)} readers"
    return next((describe(user) for user in readers if user is not None and not is_standard(user, *_PLAIN)), "")


def _factor(*nodes: ir.Node | None) -> str:
    """Return the product or quotient by what may be one number. A session fuses it into a MatMul."""
    for node in nodes:
        if node is not None and is_standard(node, "Mul", "Div"):
            places = (1,) if node.op_type == "Div" else (0, 1)
            if any(_may_be_number(node.inputs[index]) for index in places):
                return describe(node)
    return ""


def _may_be_number(value: ir.Value | None) -> bool:
    """Return whether a session may see one number here: a constant of one element, or folded constants."""
    if value is None or value.is_graph_input():
        return False
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return tensor.size == 1
    sides = None if value.shape is None else [side for side in value.shape if side != 1]
    return not sides and not _depends_on_inputs(value, set())


def _depends_on_inputs(value: ir.Value, seen: set[ir.Value]) -> bool:
    """Return whether the value is computed from an input of the graph or of a branch of it."""
    if value in seen or ir.convenience.get_const_tensor(value) is not None:
        return False
    seen.add(value)
    maker = value.producer()
    if maker is None:
        return True
    return any(_depends_on_inputs(operand, seen) for operand in maker.inputs if operand is not None)


def _reads_again(head: ir.Node, factors: Sequence[ir.Node]) -> bool:
    """Return whether another node reads the number of a factor.

    A session then shares and casts the constant, and fuses neither node.
    """
    own = {number for node in factors for number in _numbers(node)}
    others = (node for node in head.graph or () if node not in factors) if own else ()
    return any(number in own for node in others for number in _numbers(node))


def _numbers(node: ir.Node) -> Iterator[float]:
    """Yield the single F16 numbers that a node reads as constants."""
    for value in node.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor.size == 1 and tensor.dtype is ir.DataType.FLOAT16:
            yield float(tensor.numpy().reshape(-1)[0])


def _across_casts(before: ir.Node | None, behind: ir.Node | None, dtype: ir.DataType) -> str:
    """Return what a head meets across a Cast from or to F16; empty if nothing.

    That is a factor that the session fuses, a node with an F16 kernel, or two further Casts.
    """
    for cast, dtype_beside in ((before, cast_from(before)), (behind, cast_to(behind))):
        if cast is None or dtype_beside is None or not {dtype, dtype_beside} & _HALF:
            continue
        x = cast.inputs[0]
        inner = [x.producer()] if cast is before and x is not None else _readers(cast.outputs[0], cast_to(cast))
        for node in inner:
            if node is None or _looks_up(node):
                continue
            if not is_standard(node, *_PLAIN) or scale(node, np.float32(1)) is not None:
                return describe(node)
            if cast is behind and _casts_again(node):
                return describe(node)
    return ""


def _casts_again(node: ir.Node) -> bool:
    """Return whether ``node`` and a reader of it are Casts. A session merges three Casts in a row behind a MatMul."""
    if not is_standard(node, "Cast"):
        return False
    return any(user is not None and is_standard(user, "Cast") for user in _readers(node.outputs[0], cast_to(node)))


def _readers(value: ir.Value, dtype: ir.DataType | None) -> Iterator[ir.Node | None]:
    """Yield the nodes that read a value of type ``dtype``, across nodes that change nothing.

    ``None`` means an output of the graph.
    """
    if value.is_graph_output():
        yield None
    for user, _ in value.uses():
        if unchanged(user, dtype) is not None:
            yield from _readers(user.outputs[0], dtype)
        else:
            yield user


def _looks_up(node: ir.Node) -> bool:
    table = node.inputs[0] if is_standard(node, "Gather") else None
    return table is not None and table.is_initializer()


# Find nodes that a session of ONNX Runtime removes before it fuses others.
#
# These are identity, no-op, Cast and Dropout elimination.


def made_by(node: ir.Node | None, *, undeclared: bool = False) -> ir.Node | None:
    """Return the node that computes a value in a session: ``node``, or an earlier one if ``node`` changes nothing.

    With ``undeclared``, a Cast from an undeclared type also counts as a node that changes nothing.
    """
    while node is not None:
        maybe = undeclared and cast_from(node) is ir.DataType.UNDEFINED
        value = node.inputs[0] if maybe else unchanged(node, cast_from(node))
        if value is None:
            break
        node = value.producer()
    return node


def read_by(node: ir.Node | None, dtype: ir.DataType) -> ir.Node | None:
    """Return the node that reads a value in a session: ``node``, or a later one if ``node`` changes nothing.

    ``dtype`` is the type of the value.
    """
    while node is not None and unchanged(node, dtype) is not None:
        node = only_user(node)
    return node


def unchanged(node: ir.Node, dtype: ir.DataType | None) -> ir.Value | None:
    """Return the value that a node passes on unchanged, or ``None`` if the node computes something.

    A session removes such nodes before it fuses others. ``dtype`` is the type that a Cast reads.
    """
    if is_standard(node, "Identity", "Dropout") or (is_standard(node, "Cast") and cast_to(node) is dtype):
        return node.inputs[0]
    if is_standard(node, "Add", "Sub"):
        places = (1,) if node.op_type == "Sub" else (1, 0)
        return next((node.inputs[1 - position] for position in places if _is_zero(node.inputs[position])), None)
    return None


def _is_zero(value: ir.Value | None) -> bool:
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()


def cast_from(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast reads."""
    value = cast.inputs[0] if cast is not None and is_standard(cast, "Cast") else None
    return None if value is None else value.dtype or ir.DataType.UNDEFINED


def cast_to(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast returns."""
    return ir.DataType(integer(cast, "to", 0)) if cast is not None and is_standard(cast, "Cast") else None


# Match the scale factors and casts next to a head. They are rewritten with it, so that no bit changes.
#
# ONNX Runtime fuses a constant factor before or after a MatMul into it (`FusedMatMul(alpha)`,
# matmul_scale_fusion.cc). It also removes two casts in a row. It does neither across the Reshapes around a Gemm. So the
# factor becomes the Gemm's ``alpha``, and the casts swap with the Reshapes.


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
