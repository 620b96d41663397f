"""Where a Gemm's neighbours may be rounded otherwise than a MatMul's: a factor that stays a node; F16 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from tieconv.onnx.share.eliminated_nodes import cast_from, cast_to, made_by, read_by, unchanged
from tieconv.onnx.share.head_surroundings import around, only_user, scale
from tieconv.onnx.share.uses import MATRIX, describe, is_standard

_PLAIN = ("Add", "Sub", "Mul", "Div", "Tanh", "Cast")
"""Operators of which ONNX Runtime's CPU provider has no F16 kernel: it computes them in F32 beside Reshapes too."""


FUSED_F64 = " in F64 (fused by 1.31.1, not by 1.32.0)"
"""Which of the measured releases of ONNX Runtime fuse a factor into a MatMul of F64."""

_HALF = {ir.DataType.FLOAT16, ir.DataType.UNDEFINED}
"""F16, or what may be: a type that the graph does not declare."""


def beside(node: ir.Node, dtype: ir.DataType) -> str:
    """What beside a head may be rounded otherwise once Reshapes stand around it; empty where nothing can.

    A factor that the Gemm does not take in, as it cannot be told to be one number or stands beside F64, is no longer
    fused by the session. ONNX Runtime 1.32.0 never fuses one beside F64.
    The CPU provider computes F16 in F32 and leaves out the rounding between two nodes of which it has no F16 kernel
    (insert_cast_transformer.cc). One with a kernel it computes in F32 too where no neighbour has one: the Reshapes are
    such neighbours.
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
        return "a factor that stands elsewhere too"
    if surroundings.rank == MATRIX:
        return ""
    if maker is not None and (maker is not first or not is_standard(maker, *_PLAIN)) and not _looks_up(maker):
        return describe(maker)
    if after is not None and after is not reader and is_standard(after, "Cast"):
        return describe(after)
    readers = list(_readers(final.outputs[0], dtype))
    if len(readers) != 1:
        return f"{len(readers)} readers of its product"
    return next((describe(user) for user in readers if user is not None and not is_standard(user, *_PLAIN)), "")


def _factor(*nodes: ir.Node | None) -> str:
    """The product or quotient with what may be one constant number, such as the session fuses into a MatMul."""
    for node in nodes:
        if node is not None and is_standard(node, "Mul", "Div"):
            places = (1,) if node.op_type == "Div" else (0, 1)
            if any(_may_be_number(node.inputs[index]) for index in places):
                return describe(node)
    return ""


def _may_be_number(value: ir.Value | None) -> bool:
    """Whether a session may find one number here: a constant of one element, or what it computes from constants."""
    if value is None or value.is_graph_input():
        return False
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return tensor.size == 1
    sides = None if value.shape is None else [side for side in value.shape if side != 1]
    return not sides and not _depends_on_inputs(value, set())


def _depends_on_inputs(value: ir.Value, seen: set[ir.Value]) -> bool:
    """Whether an input of the graph, or of a branch of it, is among what the value is computed from."""
    if value in seen or ir.convenience.get_const_tensor(value) is not None:
        return False
    seen.add(value)
    maker = value.producer()
    if maker is None:
        return True
    return any(_depends_on_inputs(operand, seen) for operand in maker.inputs if operand is not None)


def _reads_again(head: ir.Node, factors: Sequence[ir.Node]) -> bool:
    """Whether another node reads the number of a factor: a session shares the constant, casts it, and fuses neither."""
    own = {number for node in factors for number in _numbers(node)}
    others = (node for node in head.graph or () if node not in factors) if own else ()
    return any(number in own for node in others for number in _numbers(node))


def _numbers(node: ir.Node) -> Iterator[float]:
    """The single F16 numbers that a node reads as constants."""
    for value in node.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor.size == 1 and tensor.dtype is ir.DataType.FLOAT16:
            yield float(tensor.numpy().reshape(-1)[0])


def _across_casts(before: ir.Node | None, behind: ir.Node | None, dtype: ir.DataType) -> str:
    """What a head meets behind a Cast, one side of which is F16: a factor that the session fuses across it, or a kernel
    for F16."""
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
    return ""


def _readers(value: ir.Value, dtype: ir.DataType | None) -> Iterator[ir.Node | None]:
    """Who reads a value of type ``dtype``, also behind nodes that change nothing; ``None``: an output of the graph."""
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
