"""Where a Gemm's neighbours may be rounded otherwise than a MatMul's: in F16 on the CPU, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from tieconv.onnx.share.around import around, only_user, scale
from tieconv.onnx.share.uses import MATRIX, describe, integer, is_standard

_PLAIN = ("Add", "Sub", "Mul", "Div", "Tanh", "Cast")
"""Operators of which ONNX Runtime's CPU provider has no F16 kernel: it computes them in F32 beside Reshapes too."""


_HALF = {ir.DataType.FLOAT16, ir.DataType.UNDEFINED}
"""F16, or what may be: a type that the graph does not declare."""


def beside(node: ir.Node, dtype: ir.DataType) -> str:
    """What beside an F16 head may be rounded otherwise once Reshapes stand around it; empty where nothing can.

    The CPU provider computes F16 in F32 and leaves out the rounding between two nodes of which it has no F16 kernel
    (insert_cast_transformer.cc). One with a kernel it computes in F32 too where no neighbour has one: the Reshapes are
    such neighbours.
    """
    found = around(node, dtype)
    last = (node, *found.behind)[-1]
    told = _across_casts(found.x.producer(), only_user(last), dtype)
    if told or dtype is not ir.DataType.FLOAT16:
        return told
    if len(found.before) + len(found.behind) > 1:
        return "several factors"
    if _reads_again(node, (*found.before, *found.behind)):
        return "a factor that stands elsewhere too"
    if found.rank == MATRIX:
        return ""
    maker = found.x.producer()
    if maker is not None and not is_standard(maker, *_PLAIN) and not _looks_up(maker):
        return describe(maker)
    readers = list(_readers(last.outputs[0]))
    if len(readers) != 1:
        return f"{len(readers)} readers of its product"
    return next((describe(user) for user in readers if user is not None and not is_standard(user, *_PLAIN)), "")


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
    for cast, other in ((before, _made_from(before)), (behind, _made_to(behind))):
        if cast is None or other is None or not {dtype, other} & _HALF:
            continue
        x = cast.inputs[0]
        inner = [x.producer()] if cast is before and x is not None else _readers(cast.outputs[0])
        for one in inner:
            if one is None or _looks_up(one):
                continue
            if not is_standard(one, *_PLAIN) or scale(one, np.float32(1)) is not None:
                return describe(one)
    return ""


def _readers(value: ir.Value) -> Iterator[ir.Node | None]:
    """Who reads a value, also behind an Identity; ``None`` where it is an output of the graph."""
    if value.is_graph_output():
        yield None
    for user, _ in value.uses():
        if is_standard(user, "Identity"):
            yield from _readers(user.outputs[0])
        else:
            yield user


def _made_from(cast: ir.Node | None) -> ir.DataType | None:
    """The type that a Cast reads."""
    value = cast.inputs[0] if cast is not None and is_standard(cast, "Cast") else None
    return None if value is None else value.dtype or ir.DataType.UNDEFINED


def _made_to(cast: ir.Node | None) -> ir.DataType | None:
    """The type that a Cast gives."""
    return ir.DataType(integer(cast, "to", 0)) if cast is not None and is_standard(cast, "Cast") else None


def _looks_up(node: ir.Node) -> bool:
    table = node.inputs[0] if is_standard(node, "Gather") else None
    return table is not None and table.is_initializer()
