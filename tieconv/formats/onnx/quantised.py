"""Find the quantised embedding and head of a graph by the operators that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.roles import ON_THE_WAY
from tieconv.formats.onnx.structure import Scope, integer, is_constant, origin, scopes

_HEADS = frozenset({
    "MatMulInteger", "QLinearMatMul", "com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4", "com.microsoft.QGemm",
    "com.microsoft.MatMulIntegerToFloat", "com.microsoft.DynamicQuantizeMatMul",
})  # fmt: skip
_PRODUCTS = frozenset({"MatMul", "Gemm", "com.microsoft.FusedMatMul"})
_PASSED = ON_THE_WAY | {"Add", "Mul", "Div", "DequantizeLinear"}
_BLOCKS_HEAD = "com.microsoft.MatMulNBits"
_LOOKUP = "com.microsoft.GatherBlockQuantized"
_LOGITS = "logits"
_STEPS = 64
_MATRIX = 2


@record
class Quantised:
    """A quantised matrix and the operator that uses it.

    ``parts`` has its codes, scales and zero points if the operator is a block-wise one. ``bits`` is the width of a
    code, and ``block`` the number of elements in a block.
    """

    tensor: Tensor
    operator: str
    parts: tuple[Tensor, ...] = ()
    bits: int = 0
    block: int = 0


def quantised_head(scope: Scope) -> Quantised | None:
    """Return the quantised matrix whose product reaches an output. The output `logits` is tried first."""
    outputs = sorted(scope.graph.outputs, key=lambda name: name != _LOGITS)
    return next((head for name in outputs if (head := _behind(scope, name))), None)


def _behind(scope: Scope, name: str) -> Quantised | None:
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor):
            return None
        node, _index = producer
        if node.standard in _HEADS:
            blocks = node.standard == _BLOCKS_HEAD and not any(node.inputs[4:5])  # with g_idx the columns are permuted
            return _read(scope, node, node.inputs[1:], node.inputs[1:4] if blocks else [])
        if node.standard in _PRODUCTS:
            return _dequantised(scope, node)
        computed = [operand for operand in node.inputs if operand and not is_constant(scope, operand)]
        if node.standard not in _PASSED or not computed:
            return None
        name = computed[0]
    return None


def gathered_rows(outer: Scope, head: Quantised) -> Quantised | None:
    """Return the matrix of ``head`` as an embedding if Gathers look up rows of all its parts."""
    ids: dict[str, set[int]] = {}
    for scope in scopes(outer):
        for node in scope.graph.nodes:
            if node.standard != "Gather" or len(node.inputs) < _MATRIX or integer(node, "axis", 0) != 0:
                continue
            stored = origin(scope, node.inputs[0])
            if stored is not None:
                ids.setdefault(node.inputs[1], set()).add(id(stored.tensor))
    parts = {id(part) for part in head.parts}
    read = bool(parts) and any(parts <= gathered for gathered in ids.values())
    return replace(head, operator="Gather") if read else None


def quantised_embedding(outer: Scope, tokens: int | None) -> Quantised | None:
    """Return the quantised matrix of a row lookup. Prefers a matrix with ``tokens`` rows."""
    nodes = ((scope, node) for scope in scopes(outer) for node in scope.graph.nodes if node.standard == _LOOKUP)
    reads = ((scope, node, [*node.inputs[:1], *node.inputs[2:4]] if _by_rows(node) else []) for scope, node in nodes)
    tables = [read for scope, node, parts in reads if (read := _read(scope, node, node.inputs[:1], parts))]
    return next((read for read in tables if read.tensor.dims[0] == tokens), next(iter(tables), None))


def _by_rows(node: Node) -> bool:
    """Return whether the node looks up whole rows that are quantised in blocks along each row."""
    return integer(node, "gather_axis", 0) == 0 and integer(node, "quantize_axis", 1) in (1, -1)


def _dequantised(scope: Scope, node: Node) -> Quantised | None:
    """Return the right-hand matrix of a float product if it is dequantised first, transposed or not."""
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor) or not producer[0].inputs:
            return None
        if producer[0].standard == "DequantizeLinear":
            return _read(scope, producer[0], producer[0].inputs[:1])
        if producer[0].standard not in ("Transpose", "Identity", "Cast"):
            return None
        name = producer[0].inputs[0]
    return None


def _read(scope: Scope, node: Node, names: list[str], parts: Sequence[str] = ()) -> Quantised | None:
    matrix = next(_matrices(scope, names), None)
    if matrix is None:
        return None
    origins = [origin(scope, name, shaped=True) for name in parts if name]
    held = tuple(stored.tensor for stored in origins if stored is not None)
    bits, block = integer(node, "bits", 4), integer(node, "block_size", 128)
    whole = len(held) == len(origins) > 1
    return Quantised(matrix, node.standard.rpartition(".")[2], held if whole else (), bits, block)


def _matrices(scope: Scope, names: list[str]) -> Iterator[Tensor]:
    for name in names:
        stored = origin(scope, name, shaped=True)
        if stored is not None and len(stored.tensor.dims) >= _MATRIX:
            yield stored.tensor
