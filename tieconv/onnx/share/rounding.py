"""Find neighbours of a Gemm that a session may round differently: factors that stay nodes, and F16 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from tieconv.onnx.share.eliminated_nodes import cast_from, cast_to, made_by, read_by, unchanged
from tieconv.onnx.share.head_surroundings import around, only_user, scale
from tieconv.onnx.share.uses import MATRIX, describe, is_standard

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
