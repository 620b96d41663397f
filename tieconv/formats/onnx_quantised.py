"""The quantised matrices that play the head of a graph: named by what computes with them, and never compared."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.formats.onnx_messages import Node, Tensor
from tieconv.formats.onnx_structure import Scope, is_constant, origin, scopes

_HEADS = frozenset({
    "MatMulInteger", "QLinearMatMul", "com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4", "com.microsoft.QGemm",
    "com.microsoft.MatMulIntegerToFloat", "com.microsoft.DynamicQuantizeMatMul",
})  # fmt: skip
_PRODUCTS = frozenset({"MatMul", "Gemm", "com.microsoft.FusedMatMul"})
_ON_THE_WAY = frozenset({"Identity", "Cast", "Reshape", "Tanh", "Add", "Mul", "Div", "DequantizeLinear"})
_LOOKUP = "com.microsoft.GatherBlockQuantized"
_LOGITS = "logits"
_STEPS = 64
_MATRIX = 2


def quantised_head(scope: Scope) -> tuple[Tensor, str] | None:
    """The matrix whose quantised product reaches the logits, and the operator that computes with it."""
    name = _LOGITS if _LOGITS in scope.graph.outputs else next(iter(scope.graph.outputs), "")
    for _ in range(_STEPS):
        scope, found = scope.find(name)
        if found is None or isinstance(found, Tensor):
            return None
        node, _place = found
        if node.standard in _HEADS:
            return _read(scope, node, node.inputs[1:])
        if node.standard in _PRODUCTS:
            return _dequantised(scope, node)
        computed = [one for one in node.inputs if one and not is_constant(scope, one)]
        if node.standard not in _ON_THE_WAY or not computed:
            return None
        name = computed[0]
    return None


def quantised_embedding(outer: Scope) -> tuple[Tensor, str] | None:
    """The matrix that a lookup of quantised rows reads."""
    lookups = ((scope, node) for scope in scopes(outer) for node in scope.graph.nodes if node.standard == _LOOKUP)
    return next((read for scope, node in lookups if (read := _read(scope, node, node.inputs[:1]))), None)


def _dequantised(scope: Scope, node: Node) -> tuple[Tensor, str] | None:
    """The right-hand side of a float product that is dequantised before it, in a turn or not."""
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    for _ in range(_STEPS):
        scope, found = scope.find(name)
        if found is None or isinstance(found, Tensor) or not found[0].inputs:
            return None
        if found[0].standard == "DequantizeLinear":
            return _read(scope, found[0], found[0].inputs[:1])
        if found[0].standard not in ("Transpose", "Identity", "Cast"):
            return None
        name = found[0].inputs[0]
    return None


def _read(scope: Scope, node: Node, names: list[str]) -> tuple[Tensor, str] | None:
    return next(_matrices(scope, node, names), None)


def _matrices(scope: Scope, node: Node, names: list[str]) -> Iterator[tuple[Tensor, str]]:
    for name in names:
        found = origin(scope, name, shaped=True)
        if found is not None and len(found.tensor.dims) >= _MATRIX:
            yield found.tensor, node.standard.rpartition(".")[2]
