"""Match the Reshapes around a Gemm.

The whole is `Reshape(Gemm(Reshape(x, [-1, H]), W), [*shape(x)[:-1], V])`, which replaces a MatMul.
"""

from __future__ import annotations

import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.share.uses import SMALL, drop, drop_unread, integer, is_standard


@record
class ReshapedGemm:
    """The nodes from ``first_reshape`` (of ``x``) through ``gemm`` to ``last_reshape`` (of the product)."""

    x: ir.Value
    first_reshape: ir.Node
    gemm: ir.Node
    last_reshape: ir.Node


def reshaped_gemm_of(gemm: ir.Node) -> ReshapedGemm | None:
    """Return the Reshapes around a Gemm, or ``None`` if there are none or the shapes are not a MatMul's."""
    flat = gemm.inputs[0]
    first_reshape = flat.producer() if flat is not None else None
    uses = list(gemm.outputs[0].uses())
    if first_reshape is None or len(uses) != 1 or gemm.outputs[0].is_graph_output():
        return None
    second_reshape, index = uses[0]
    if index or not (is_standard(first_reshape, "Reshape") and is_standard(second_reshape, "Reshape")):
        return None
    x = first_reshape.inputs[0]
    rows = _constant(first_reshape.inputs[1])
    if x is None or rows is None or len(rows) != 2 or rows[0] != -1:
        return None
    return ReshapedGemm(x, first_reshape, gemm, second_reshape) if _keeps_leading(second_reshape.inputs[1], x) else None


def _keeps_leading(shape: ir.Value | None, x: ir.Value) -> bool:
    """Return whether ``shape`` equals the shape of ``x`` except for the last axis."""
    joined = shape.producer() if shape is not None else None
    if joined is None:
        fixed, shape_of_x = _constant(shape), x.shape
        return fixed is not None and shape_of_x is not None and list(shape_of_x)[:-1] == fixed[:-1]
    if not is_standard(joined, "Concat") or len(joined.inputs) != 2 or _constant(joined.inputs[1]) is None:
        return False
    leading = joined.inputs[0].producer() if joined.inputs[0] is not None else None
    if leading is not None and is_standard(leading, "Slice"):
        ends = [_constant(value) for value in leading.inputs[1:]]
        source = leading.inputs[0].producer() if leading.inputs[0] is not None else None
        return ends == [[0], [-1]] and source is not None and is_standard(source, "Shape") and source.inputs[0] is x
    return (
        leading is not None
        and is_standard(leading, "Shape")
        and leading.inputs[0] is x
        and (integer(leading, "start", 0), integer(leading, "end", 0)) == (0, -1)
    )


def _constant(value: ir.Value | None) -> list[int] | None:
    tensor = value.const_value if value is not None else None
    if tensor is None or tensor.size > SMALL or len(tensor.shape) != 1:
        return None
    return [int(entry) for entry in tensor.numpy()]


def remove(wrapped: ReshapedGemm) -> None:
    """Remove the Gemm, the Reshape before it, and what only the two Reshapes read."""
    shape = wrapped.last_reshape.inputs[1] if len(wrapped.last_reshape.inputs) > 1 else None
    drop(wrapped.gemm)
    drop(wrapped.first_reshape)
    if shape is not None:
        drop_unread(shape)
