"""Handle `MatMul(x, Wᵀ)`: the head of a language model, as ONNX exporters write it."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.onnx.graph.model import sides
from tieconv.onnx.share.head_surroundings import Around, around
from tieconv.onnx.share.patterns.interface import Names, Target, constant, dtype_of, replace
from tieconv.onnx.share.rounding import beside
from tieconv.onnx.share.uses import MATRIX, Use, drop, drop_unread, is_standard

MICROSOFT = "com.microsoft"
_FLOATS = ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16")
"""The types of Gemm and FusedMatMul. The standard's Gemm of integers has no kernel in any runtime."""
ALLOWZERO = 14
"""The first opset whose Reshape can keep an axis of length 0."""
SHAPE_END = 15
"""The first opset whose Shape can omit axes."""


class MatMulHead:
    """A MatMul whose right operand is the transposed matrix."""

    def claims(self, use: Use) -> bool:
        return use.node is not None and is_standard(use.node, "MatMul")

    def refuses(self, use: Use, target: Target) -> str:
        assert use.node is not None
        if dtype_of(use, target.dtype) != target.dtype:
            return f"a MatMul computes with it in {dtype_of(use, target.dtype).name}"
        if use.index != 1:
            return "a MatMul reads it as its left operand" if use.flipped else ""
        if not use.flipped or target.form is HeadForm.TRANSPOSE:
            return ""
        if target.dtype.name not in _FLOATS:
            return f"{'FusedMatMul' if target.form is HeadForm.FUSED else 'Gemm'} does not support {target.dtype.name}"
        if target.form is HeadForm.FUSED:
            return ""
        if target.opset < ALLOWZERO and _rank(use.node.inputs[0]) != 2:
            return f"in opset {target.opset} a Reshape around Gemm would lose empty batches: use --head-form fused"
        return ""

    def rewrite(self, use: Use, target: Target) -> None:
        node, value = use.node, target.value
        assert node is not None
        if not use.flipped:
            node.replace_input_with(use.index, value)
        elif target.form is HeadForm.TRANSPOSE:
            _transpose(node, target)
        elif target.form is HeadForm.FUSED:
            _fused(node, value, target.names)
        else:
            _gemm(node, value, target)


def folded(use: Use, target: Target) -> tuple[ir.Node, ...]:
    """Return the nodes next to a head that are rewritten with it."""
    return around(use.node, target.dtype).nodes if use.node is not None and _becomes_gemm(use, target) else ()


def rounded(use: Use, target: Target) -> str:
    """Return what a session may round differently next to a head that becomes a Gemm; empty if nothing."""
    return beside(use.node, target.dtype) if use.node is not None and _becomes_gemm(use, target) else ""


def becomes_another_node(use: Use) -> bool:
    """Return whether the use is a MatMul that must read the matrix transposed."""
    return use.flipped and use.index == 1 and use.node is not None and is_standard(use.node, "MatMul")


def _becomes_gemm(use: Use, target: Target) -> bool:
    return target.form is HeadForm.GEMM and becomes_another_node(use)


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _fused(node: ir.Node, value: ir.Value, names: Names) -> None:
    fused = ir.node("FusedMatMul", [node.inputs[0], value], {"transB": 1}, domain=MICROSOFT)
    replace(node, [fused], names)


def _transpose(node: ir.Node, target: Target) -> None:
    node.replace_input_with(1, _turned(target))


def _turned(target: Target) -> ir.Value:
    """Return the only Transpose of the matrix, in the matrix's graph, so that a session folds it once."""
    value, graph = target.value, target.value.graph
    assert isinstance(graph, ir.Graph) and value.shape is not None
    for user, _ in value.uses():
        if is_standard(user, "Transpose") and user.graph is graph:
            if graph[0] is not user:  # the head may precede it
                graph.remove(user)
                graph.insert_before(graph[0], user)
            return user.outputs[0]
    name = target.names.free(f"{value.name}/Transpose")
    turned = ir.node("Transpose", [value], {"perm": [1, 0]}, name=name)
    turned.outputs[0].name = target.names.free(f"{value.name}/transposed")
    turned.outputs[0].dtype = target.dtype
    turned.outputs[0].shape = ir.Shape([value.shape[1], value.shape[0]])
    graph.insert_before(graph[0], turned)
    return turned.outputs[0]


def _gemm(node: ir.Node, value: ir.Value, target: Target) -> None:
    surroundings = around(node, target.dtype)
    nodes = _product(node, surroundings, value, target)
    final = surroundings.widen if surroundings.widen is not None else (node, *surroundings.behind)[-1]
    numbers = [operand for operand in final.inputs if operand is not None]
    replace(final, nodes, target.names)
    for number in numbers:
        drop_unread(number)
    for left in (*reversed(surroundings.behind), node, *reversed(surroundings.before), surroundings.narrow):
        if left is not None:
            drop(left)


def _product(node: ir.Node, surroundings: Around, value: ir.Value, target: Target) -> list[ir.Node]:
    """Return the nodes that compute the product, with all rows along one axis."""
    attributes = {"transB": 1} | ({} if surroundings.alpha == 1 else {"alpha": surroundings.alpha})
    x = surroundings.x if surroundings.narrow is None else surroundings.narrow.inputs[0]
    assert x is not None and value.shape is not None
    if surroundings.rank == MATRIX:
        return [ir.node("Gemm", [x, value], attributes)]
    vocabulary, hidden = sides(value.shape)
    flat = ir.node("Reshape", [x, constant(node, [-1, hidden], target.names, "rows")])
    if x.dtype is not None:
        flat.outputs[0].dtype = x.dtype
    rows = [flat, *_cast_like(surroundings.narrow, flat)]
    gemm = ir.node("Gemm", [rows[-1].outputs[0], value], attributes)
    gemm.outputs[0].dtype = target.dtype
    products = [gemm, *_cast_like(surroundings.widen, gemm)]
    for made, width in (
        *((made_node, hidden) for made_node in rows),
        *((made_node, vocabulary) for made_node in products),
    ):
        if made.outputs[0].dtype is not None:
            made.outputs[0].shape = ir.Shape([None, width])
    leading, shape = _shape(node, x, vocabulary, target)
    final = ir.node("Reshape", [products[-1].outputs[0], shape], {"allowzero": 1})
    return [*rows, *products, *leading, final]


def _cast_like(cast: ir.Node | None, made: ir.Node) -> list[ir.Node]:
    """Return the same cast of what ``made`` computes, or nothing if ``cast`` is ``None``."""
    if cast is None:
        return []
    node = ir.node("Cast", [made.outputs[0]], cast.attributes)
    node.outputs[0].dtype = ir.DataType(cast.attributes["to"].as_int())
    return [node]


def _shape(node: ir.Node, x: ir.Value, vocabulary: int, target: Target) -> tuple[list[ir.Node], ir.Value]:
    """Return the shape of the result, and the nodes that compute it if it is not fixed."""
    if x.shape is not None and all(isinstance(side, int) for side in x.shape):
        return [], constant(node, [*sides(x.shape)[:-1], vocabulary], target.names, "shape")
    width = constant(node, [vocabulary], target.names, "width")
    if target.opset >= SHAPE_END:
        nodes = [ir.node("Shape", [x], {"end": -1})]
    else:
        whole = ir.node("Shape", [x])
        ends = [constant(node, [at], target.names, hint) for at, hint in ((0, "first"), (-1, "last"))]
        nodes = [whole, ir.node("Slice", [whole.outputs[0], *ends])]
    joined = ir.node("Concat", [nodes[-1].outputs[0], width], {"axis": 0})
    for made in (*nodes, joined):
        made.outputs[0].dtype = ir.DataType.INT64
    return [*nodes, joined], joined.outputs[0]
