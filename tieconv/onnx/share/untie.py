"""Untie a graph: a head that reads the embedding's matrix gets a separate one, [H, V], for a MatMul."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.checkpoint.graph_plan import SharedMatrix
from tieconv.checkpoint.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph_model import GraphBytes, GraphFile, Stored, shared_matrix
from tieconv.onnx.share import find
from tieconv.onnx.share.node_patterns import MICROSOFT, Names, replace_node
from tieconv.onnx.share.share_matrices import copied, turned
from tieconv.sources.local import FileSet


def untie(file: GraphFile, files: FileSet) -> tuple[SharedMatrix, ...]:
    """Rewrite the graph in place; return what was done to each matrix that an embedding and a head read."""
    names = Names(file.model)
    matrices = []
    for stored in GraphBytes(file, files).stored(MIN_ELEMENTS):
        flipped, heads = _tied(stored)
        if heads:
            matrices.append(_untie(file, stored, flipped, heads, names))
            file.changed = True
    return tuple(matrices)


def _tied(stored: Stored) -> tuple[bool, tuple[find.Use, ...]]:
    """Return whether the embedding gathers rows of the transposed matrix, and the heads that read the matrix."""
    if len(stored.record.shape) != 2:
        return False, ()
    uses = list(find.uses_of(stored.value))
    lookups = [use for use in uses if use.node is not None and find.is_standard(use.node, "Gather") and use.index == 0]
    if not lookups:
        return False, ()
    first = lookups[0]
    assert first.node is not None
    flipped = first.flipped != (find.integer(first.node, "axis", 0) % 2 == 1)
    return flipped, tuple(use for use in uses if _is_head(use, flipped))


def _is_head(use: find.Use, flipped: bool) -> bool:
    """Return whether the node multiplies by the matrix of the embedding, which is the stored one or its transpose."""
    node = use.node
    if node is None or use.index != 1 or flipped == (use.flipped != bool(find.integer(node, "transB", 0))):
        return False
    return find.is_standard(node, "MatMul", "Gemm") or (node.domain == MICROSOFT and node.op_type == "FusedMatMul")


def _untie(file: GraphFile, stored: Stored, flipped: bool, heads: tuple[find.Use, ...], names: Names) -> SharedMatrix:
    name = names.free(f"{stored.value.name}_head")
    make = copied if flipped else turned
    own = make(file, stored, stored.graph, name)  # as far from the heads as the embedding's: the same kernels
    nodes = tuple(find.describe(use.node) for use in heads)
    for use in heads:
        assert use.node is not None
        _rewrite(use.node, own, names)
    find.remove_unread(stored.value)
    size = stored.record.nbytes
    doubled = (size, 2 * size)
    return shared_matrix(file, stored.value, ("head",), doubled, doubled, (name,), nodes, copies_promised=2)


def _rewrite(node: ir.Node, own: ir.Value, names: Names) -> None:
    """Make the head read ``own`` as stored.

    A Gemm or FusedMatMul becomes a MatMul if it computes nothing more.
    """
    # Whether the node only multiplies two inputs.
    operands = [value for value in node.inputs if value is not None]
    switches = ("transA", "transBatchA", "transBatchB")
    alpha = node.attributes.get("alpha")
    scaled = alpha is not None and alpha.as_float() != 1.0
    if not (len(operands) == 2 and not scaled and not any(find.integer(node, name, 0) for name in switches)):
        node.replace_input_with(1, own)
        if "transB" in node.attributes:
            node.attributes["transB"] = ir.AttrInt64("transB", 0)
        return
    wrapped = reshaped_gemm_of(node)
    x = node.inputs[0] if wrapped is None else wrapped.x
    matmul = ir.node("MatMul", [x, own])
    if wrapped is None:
        replace_node(node, [matmul], names)
    else:
        replace_node(wrapped.last_reshape, [matmul], names)
        remove(wrapped)


# Match the Reshapes around a Gemm.
#
# The whole is `Reshape(Gemm(Reshape(x, [-1, H]), W), [*shape(x)[:-1], V])`, which replaces a MatMul.


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
    if index or not (find.is_standard(first_reshape, "Reshape") and find.is_standard(second_reshape, "Reshape")):
        return None
    x = first_reshape.inputs[0]
    rows = _constant(first_reshape.inputs[1])
    if x is None or rows is None or len(rows) != 2 or rows[0] != -1:
        return None
    return ReshapedGemm(x, first_reshape, gemm, second_reshape) if _keeps_leading(second_reshape.inputs[1], x) else None


def _keeps_leading(shape: ir.Value | None, x: ir.Value) -> bool:
    joined = shape.producer() if shape is not None else None
    if joined is None:
        fixed, shape_of_x = _constant(shape), x.shape
        return fixed is not None and shape_of_x is not None and list(shape_of_x)[:-1] == fixed[:-1]
    if not find.is_standard(joined, "Concat") or len(joined.inputs) != 2 or _constant(joined.inputs[1]) is None:
        return False
    leading = joined.inputs[0].producer() if joined.inputs[0] is not None else None
    if leading is not None and find.is_standard(leading, "Slice"):
        ends = [_constant(value) for value in leading.inputs[1:]]
        source = leading.inputs[0].producer() if leading.inputs[0] is not None else None
        return (
            ends == [[0], [-1]] and source is not None and find.is_standard(source, "Shape") and source.inputs[0] is x
        )
    return (
        leading is not None
        and find.is_standard(leading, "Shape")
        and leading.inputs[0] is x
        and (find.integer(leading, "start", 0), find.integer(leading, "end", 0)) == (0, -1)
    )


def _constant(value: ir.Value | None) -> list[int] | None:
    tensor = value.const_value if value is not None else None
    if tensor is None or tensor.size > find.SMALL or len(tensor.shape) != 1:
        return None
    return [int(entry) for entry in tensor.numpy()]


def remove(wrapped: ReshapedGemm) -> None:
    """Remove the Gemm, the Reshape before it, and what only the two Reshapes read."""
    shape = wrapped.last_reshape.inputs[1] if len(wrapped.last_reshape.inputs) > 1 else None
    find.drop(wrapped.gemm)
    find.drop(wrapped.first_reshape)
    if shape is not None:
        find.drop_unread(shape)
