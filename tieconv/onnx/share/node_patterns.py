"""Rewrite the nodes that read a matrix, one class for each kind of node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from tieconv.checkpoint.graph_plan import HeadForm
from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph_model import sides
from tieconv.onnx.share import find

# Define what every pattern can do: check whether a node can read the target, and rewrite the node.


@dataclass
class Names:
    """Names that are free in a model."""

    model: ir.Model
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for graph in self.model.graphs():
            self.taken |= {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
            for node in graph:
                self.taken |= {value.name for value in node.outputs if value.name}
                self.taken.add(node.name or "")

    def free(self, wanted: str) -> str:
        """Return ``wanted``, or its first numbered variant that is free."""
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name


@record
class Target:
    """The initializer that stays, and how a head will read it."""

    value: ir.Value
    dtype: ir.DataType
    form: HeadForm
    opset: int
    names: Names


class Pattern(Protocol):
    """One kind of node that reads a matrix.

    ``use.flipped`` is relative to the target: true if the node reads the transpose of the target.
    """

    def claims(self, use: find.Use) -> bool:
        """Return whether the node is of this kind."""
        ...

    def refuses(self, use: find.Use, target: Target) -> str:
        """Return why the node cannot read the target; empty if it can."""
        ...

    def rewrite(self, use: find.Use, target: Target) -> None:
        """Make the node read the target. Its outputs keep their names, types and shapes."""
        ...


def replace_node(old: ir.Node, nodes: Sequence[ir.Node], names: Names) -> None:
    """Replace ``old`` by ``nodes``. The last node takes over its output, name and metadata."""
    graph, final = old.graph, nodes[-1]
    assert graph is not None
    for node in nodes[:-1]:
        node.name = names.free(f"{old.name or old.op_type}/{node.op_type}")
        node.outputs[0].name = names.free(f"{old.outputs[0].name}/{node.op_type}")
    final.name = old.name
    final.doc_string = old.doc_string
    final.metadata_props.update(old.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, old, [old], nodes, old.outputs, final.outputs)


def dtype_of(use: find.Use, default: ir.DataType) -> ir.DataType:
    """Return the type that the node reads."""
    if use.dtype is not None:
        return use.dtype
    value = use.node.inputs[use.index] if use.node is not None else None
    return default if value is None or value.dtype is None else value.dtype


def constant(
    node: ir.Node, values: int | Sequence[int], names: Names, hint: str, dtype: ir.DataType = ir.DataType.INT64
) -> ir.Value:
    """Return a small initializer in the node's graph."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = names.free(f"{node.outputs[0].name}/{hint}")
    tensor = ir.tensor(values, dtype=dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(sides(tensor.shape)), type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


# Handle `MatMul(x, Wᵀ)`: the head of a language model, as ONNX exporters write it.

MICROSOFT = "com.microsoft"
_FLOATS = ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16")
"""The types of Gemm and FusedMatMul. The standard's Gemm of integers has no kernel in any runtime."""
ALLOWZERO = 14
"""The first opset whose Reshape can keep an axis of length 0."""
SHAPE_END = 15
"""The first opset whose Shape can omit axes."""


class MatMulHead:
    """A MatMul whose right operand is the transposed matrix."""

    def claims(self, use: find.Use) -> bool:
        return use.node is not None and find.is_standard(use.node, "MatMul")

    def refuses(self, use: find.Use, target: Target) -> str:
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
        if target.opset < ALLOWZERO and find.rank_of(use.node.inputs[0]) != 2:
            return f"in opset {target.opset} a Reshape around Gemm would lose empty batches: use --head-form fused"
        return ""

    def rewrite(self, use: find.Use, target: Target) -> None:
        node, value = use.node, target.value
        assert node is not None
        if not use.flipped:
            node.replace_input_with(use.index, value)
        elif target.form is HeadForm.TRANSPOSE:
            node.replace_input_with(1, _turned(target))
        elif target.form is HeadForm.FUSED:
            fused = ir.node("FusedMatMul", [node.inputs[0], value], {"transB": 1}, domain=MICROSOFT)
            replace_node(node, [fused], target.names)
        else:
            surroundings = find.around(node, target.dtype)
            nodes = _product(node, surroundings, value, target)
            final = surroundings.widen if surroundings.widen is not None else (node, *surroundings.behind)[-1]
            numbers = [operand for operand in final.inputs if operand is not None]
            replace_node(final, nodes, target.names)
            for number in numbers:
                find.drop_unread(number)
            for left in (*reversed(surroundings.behind), node, *reversed(surroundings.before), surroundings.narrow):
                if left is not None:
                    find.drop(left)


def folded(use: find.Use, target: Target) -> tuple[ir.Node, ...]:
    """Return the nodes next to a head that are rewritten with it."""
    return find.around(use.node, target.dtype).nodes if use.node is not None and _becomes_gemm(use, target) else ()


def rounded(use: find.Use, target: Target) -> str:
    """Return what a session may round differently next to a head that becomes a Gemm; empty if nothing."""
    return find.beside(use.node, target.dtype) if use.node is not None and _becomes_gemm(use, target) else ""


def becomes_another_node(use: find.Use) -> bool:
    """Return whether the use is a MatMul that must read the matrix transposed."""
    return use.flipped and use.index == 1 and use.node is not None and find.is_standard(use.node, "MatMul")


def _becomes_gemm(use: find.Use, target: Target) -> bool:
    return target.form is HeadForm.GEMM and becomes_another_node(use)


def _turned(target: Target) -> ir.Value:
    """Return the only Transpose of the matrix, in the matrix's graph, so that a session folds it once."""
    value, graph = target.value, target.value.graph
    assert isinstance(graph, ir.Graph) and value.shape is not None
    for user, _ in value.uses():
        if find.is_standard(user, "Transpose") and user.graph is graph:
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


def _product(node: ir.Node, surroundings: find.Around, value: ir.Value, target: Target) -> list[ir.Node]:
    """Return the nodes that compute the product, with all rows along one axis."""
    attributes = {"transB": 1} | ({} if surroundings.alpha == 1 else {"alpha": surroundings.alpha})
    x = surroundings.x if surroundings.narrow is None else surroundings.narrow.inputs[0]
    assert x is not None and value.shape is not None
    if surroundings.rank == find.MATRIX:
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


class Switched:
    """A node with an attribute that makes it read the matrix transposed."""

    def claims(self, use: find.Use) -> bool:
        return use.node is not None and (find.is_standard(use.node, "Gemm") or _is_fused(use.node))

    def refuses(self, use: find.Use, target: Target) -> str:
        node = use.node
        assert node is not None
        if dtype_of(use, target.dtype) != target.dtype:
            return f"a {node.op_type} computes with it in {dtype_of(use, target.dtype).name}"
        if not use.flipped:
            return ""
        if use.index > 1 or (_is_fused(node) and (use.index != 1 or find.integer(node, "transBatchB", 0))):
            return f"a {node.op_type} reads it as another input than the right operand"
        return ""

    def rewrite(self, use: find.Use, target: Target) -> None:
        node = use.node
        assert node is not None
        node.replace_input_with(use.index, target.value)
        if use.flipped:
            name = "transA" if use.index == 0 else "transB"
            node.attributes[name] = ir.AttrInt64(name, 1 - find.integer(node, name, 0))


def _is_fused(node: ir.Node) -> bool:
    return node.domain == MICROSOFT and node.op_type == "FusedMatMul"


class Lookup:
    """A Gather of rows or columns.

    If the stored matrix is transposed, it gathers along the other axis and transposes the small result. If the stored
    matrix has another type, it casts the result.
    """

    def claims(self, use: find.Use) -> bool:
        return use.node is not None and find.is_standard(use.node, "Gather") and use.index == 0

    def refuses(self, use: find.Use, target: Target) -> str:
        assert use.node is not None
        if use.flipped and find.rank_of(use.node.inputs[1]) is None:
            return "a Gather has indices of unknown rank"
        return ""

    def rewrite(self, use: find.Use, target: Target) -> None:
        node = use.node
        assert node is not None
        wanted = dtype_of(use, target.dtype)
        if not use.flipped and wanted == target.dtype:
            node.replace_input_with(0, target.value)
            return
        axis = find.integer(node, "axis", 0) % 2
        nodes = [ir.node("Gather", [target.value, node.inputs[1]], {"axis": 1 - axis if use.flipped else axis})]
        nodes[0].outputs[0].dtype = target.dtype
        if use.flipped:
            # Rows of the transpose (axis 0) arrive as [C, indices…] and must become [indices…, C]; columns the inverse.
            rank = find.rank_of(node.inputs[1])
            assert rank is not None
            perm = [*range(1, rank + 1), 0] if axis == 0 else [rank, *range(rank)]
            nodes.append(ir.node("Transpose", [nodes[-1].outputs[0]], {"perm": perm}))
            nodes[-1].outputs[0].dtype = target.dtype
        if wanted != target.dtype:
            nodes.append(ir.node("Cast", [nodes[-1].outputs[0]], {"to": int(wanted)}))
        replace_node(node, nodes, target.names)


class AnyNode:
    """A node of unknown meaning."""

    def claims(self, use: find.Use) -> bool:
        return True

    def refuses(self, use: find.Use, target: Target) -> str:
        if use.node is None:
            return "it is an output of the graph"
        if use.flipped or dtype_of(use, target.dtype) != target.dtype:
            return f"{find.describe(use.node)} reads it in its own form"
        return ""

    def rewrite(self, use: find.Use, target: Target) -> None:
        assert use.node is not None
        use.node.replace_input_with(use.index, target.value)


def pattern_of(use: find.Use) -> Pattern:
    """Return the first pattern that claims the use."""
    return next(pattern for pattern in (Lookup(), MatMulHead(), Switched(), AnyNode()) if pattern.claims(use))
