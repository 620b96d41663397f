"""Write every product with a stored matrix as MatMul, because ONNX Runtime's quantisers skip the other forms."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes  # noqa: F401 - registers bfloat16, which an initializer may have
import numpy as np
import onnx_ir as ir

from tieconv.onnx.graph.model import sides
from tieconv.onnx.share.patterns.interface import Names, replace
from tieconv.onnx.share.uses import MATRIX, Use, integer, is_standard, remove_unread, uses_of


def as_matmuls(model: ir.Model) -> dict[str, str]:
    """Rewrite Gemm nodes, and products with a transposed matrix, as MatMul with a matrix [in, out].

    Return the names of the new matrices, by the name of the matrix whose transpose each is.
    """
    names = Names(model)
    turned: dict[str, ir.Value] = {}
    for graph in model.graphs():
        for value in [value for value in graph.initializers.values() if is_matrix(value)]:
            for use in list(uses_of(value)):
                if _is_product(use):
                    _rewrite(use, value, turned, names)
            remove_unread(value)
    return {name: str(value.name) for name, value in turned.items()}


def lookups(model: ir.Model, name: str) -> Iterator[ir.Node]:
    """Yield the Gather nodes that look up rows of the initializer ``name``."""
    value = model.graph.initializers.get(name)
    for node, index in () if value is None else tuple(value.uses()):
        if is_standard(node, "Gather") and index == 0 and integer(node, "axis", 0) in (0, -MATRIX):
            yield node


def is_matrix(value: ir.Value) -> bool:
    """Return whether the value is a stored float matrix."""
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == MATRIX and tensor.dtype.is_floating_point()


def _is_product(use: Use) -> bool:
    if use.node is None or use.index != 1:
        return False
    return is_standard(use.node, "MatMul") or (is_standard(use.node, "Gemm") and _is_plain(use.node))


def _is_plain(node: ir.Node) -> bool:
    """Return whether a Gemm computes x · B + C and nothing more."""
    factors = [node.attributes.get(name) for name in ("alpha", "beta")]
    return not integer(node, "transA", 0) and all(factor is None or factor.as_float() == 1.0 for factor in factors)


def _rewrite(use: Use, value: ir.Value, turned: dict[str, ir.Value], names: Names) -> None:
    node = use.node
    assert node is not None
    flipped = use.flipped != bool(integer(node, "transB", 0))
    matrix = _turned(value, turned, names) if flipped else value
    if is_standard(node, "MatMul"):
        node.replace_input_with(1, matrix)
        return
    nodes = [ir.node("MatMul", [node.inputs[0], matrix])]
    if len(node.inputs) > MATRIX and node.inputs[MATRIX] is not None:
        nodes.append(ir.node("Add", [nodes[0].outputs[0], node.inputs[MATRIX]]))
    nodes[0].outputs[0].type = value.type
    replace(node, nodes, names)
    if len(nodes) == 1:
        nodes[0].name = node.name


def _turned(value: ir.Value, turned: dict[str, ir.Value], names: Names) -> ir.Value:
    name = str(value.name)
    if name not in turned:
        tensor = value.const_value
        assert tensor is not None and isinstance(value.graph, ir.Graph)
        own = names.free(f"{name}_head")
        rows, columns = sides(tensor.shape)

        def transposed() -> ir.TensorProtocol:
            return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=own)

        # Transposed when it is read, so that only one is in memory.
        matrix = ir.LazyTensor(transposed, dtype=tensor.dtype, shape=ir.Shape([columns, rows]), name=own)
        made = ir.Value(name=own, shape=matrix.shape, type=ir.TensorType(tensor.dtype), const_value=matrix)
        value.graph.register_initializer(made)
        turned[name] = made
    return turned[name]
