"""Find the input embedding, the output head and its bias by what the nodes do with initializers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto

from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.scopes import FED, Scope, integer, is_constant, origin, scopes

LOGITS = "logits"
_UNARY = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile", "Slice", "Split",
    "Gather", "GatherND", "GatherElements", "ArgMax", "TopK", "ReduceMax", "Clip", "Tanh", "Sigmoid", "LogSoftmax",
    "Softmax", "Log", "Exp", "Neg", "DequantizeLinear",
})  # fmt: skip
"""Operators between the head's product and an output that keep, choose or rescale logits."""
_JOINED = frozenset({"Where", "Concat", "Max", "Min"})
_WITH_A_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "com.microsoft.FusedMatMul"})
_QUANTISED_PRODUCTS = frozenset({
    "MatMulInteger", "QLinearMatMul", "com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4", "com.microsoft.QGemm",
    "com.microsoft.MatMulIntegerToFloat", "com.microsoft.DynamicQuantizeMatMul",
})  # fmt: skip
_BLOCKS_PRODUCT, _BLOCKS_LOOKUP = "com.microsoft.MatMulNBits", "com.microsoft.GatherBlockQuantized"
EMBED_LAYER_NORM, WORDS = "com.microsoft.EmbedLayerNormalization", 2
"""The node of ONNX Runtime's optimiser for BERT's embeddings, and its input with the token matrix."""
_MATRIX = 2
_FEW_ROWS, _LARGER = 16, 16
"""The most rows of a lookup of token types, and how many times as many the lookup of tokens has."""
_STEPS = 1000


@record
class Quantised:
    """How a quantised matrix is read: the operator, and for a block-wise one its codes, scales and zero points.

    ``bits`` is the width of a code, and ``block`` the number of elements in a block.
    """

    operator: str
    parts: tuple[Tensor, ...] = ()
    bits: int = 0
    block: int = 0


@record
class Role:
    """A matrix in its role. ``turned`` is true if it is stored as [H, V], with V tokens."""

    tensor: Tensor
    turned: bool
    quantised: Quantised | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens (V)."""
        return self.tensor.dims[1 if self.turned else 0]


@record
class Roles:
    """The embedding, the head and the head bias of a graph."""

    embedding: Role | None = None
    head: Role | None = None
    bias: Tensor | None = None


def find_roles(scope: Scope) -> Roles:
    """Find the roles in the graph of ``scope``.

    The head is the matrix of a product that reaches an output, `logits` first. The product is a MatMul, a Gemm, an
    Einsum or a quantised one. On the way the logits are only chosen, reshaped, normalised or changed by constants. The
    head has as many tokens as a matrix that is looked up. The embedding is the matrix of a Gather, a
    GatherBlockQuantized or an EmbedLayerNormalization. Its indices are an input, or are computed from one.
    """
    lookups = list(_lookups(scope))
    # Leave out the lookups of token types, such as BERT's two segments.
    most = max((role.tokens for role, index in lookups if index is not Index.INDEPENDENT), default=0)
    lookups = [read for read in lookups if read[0].tokens > _FEW_ROWS or read[0].tokens * _LARGER > most]
    by_ids = [role for role, index in lookups if index is Index.IDS]
    computed = [role for role, index in lookups if index is Index.COMPUTED]
    head, bias = _head(scope, [*by_ids, *computed])
    largest = max(by_ids or computed, key=lambda role: role.tokens, default=None)
    if head is None:
        return Roles(largest)
    rows = _gathered_rows(scope, head)
    fitting = [role for role in (*by_ids, *computed, *(role for role, _ in lookups)) if role.tokens == head.tokens]
    embedding = next((role for role in fitting if role.tensor is head.tensor), None) or next(iter(fitting), None)
    return Roles(rows or embedding or largest, head, bias)


def _lookups(outer: Scope) -> Iterator[tuple[Role, Index]]:
    """Yield each matrix that a node looks up by rows or columns, and the class of its indices."""
    for scope in scopes(outer):
        for node in scope.graph.nodes:
            role, ids = None, ""
            if node.standard == "Gather" and len(node.inputs) > 1:
                ids, turned = node.inputs[1], integer(node, "axis", 0) % 2 == 1
                role = _matrix(scope, node.inputs[0], turned=turned)
            elif node.standard == EMBED_LAYER_NORM and len(node.inputs) > WORDS:
                ids, role = node.inputs[0], _matrix(scope, node.inputs[WORDS])
            elif node.standard == _BLOCKS_LOOKUP and len(node.inputs) > 1:
                # Only whole rows that are quantised in blocks along each row compare with a MatMulNBits.
                by_rows = integer(node, "gather_axis", 0) == 0 and integer(node, "quantize_axis", 1) in (1, -1)
                parts = [*node.inputs[:1], *node.inputs[2:4]] if by_rows else []
                ids, role = node.inputs[1], _blocks(scope, node, node.inputs[:1], parts)
            if role is not None and (index := index_of(scope, ids)) is not None:
                yield role, index


def _matrix(scope: Scope, name: str, *, turned: bool = False) -> Role | None:
    """Return the matrix behind a value, also behind its dequantisation. ``turned`` if its columns are tokens."""
    stored = origin(scope, name)
    if stored is None:
        # A matrix of codes is behind a DequantizeLinear, or behind Mul(Cast(codes), scale).
        for _ in range(_STEPS):
            scope, producer = scope.find(name)
            if producer is None or isinstance(producer, Tensor) or not producer[0].inputs:
                return None
            node = producer[0]
            if node.standard == "DequantizeLinear":
                return _codes(scope, node, node.inputs[0], turned)
            if node.standard == "Mul":
                codes = next((operand for operand in (_shifted(scope, value) for value in node.inputs) if operand), "")
                return _codes(scope, node, codes, turned) if codes else None
            if node.standard not in ("Transpose", "Identity", "Cast"):
                return None
            turned ^= node.standard == "Transpose"
            name = node.inputs[0]
        return None
    return Role(stored.tensor, stored.turned != turned) if len(stored.tensor.dims) == _MATRIX else None


def _shifted(scope: Scope, name: str) -> str:
    """Return the value that a Cast reads, also if a zero point is subtracted behind it; empty without a Cast."""
    for _ in range(_MATRIX):
        _, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor) or not producer[0].inputs:
            return ""
        if producer[0].standard == "Cast":
            return name
        if producer[0].standard != "Sub":
            return ""
        name = producer[0].inputs[0]
    return ""


def _codes(scope: Scope, node: Node, name: str, turned: bool) -> Role | None:
    stored = origin(scope, name)
    if stored is None or len(stored.tensor.dims) != _MATRIX:
        return None
    return Role(stored.tensor, stored.turned != turned, Quantised(node.standard))


def _blocks(scope: Scope, node: Node, names: Sequence[str], parts: Sequence[str]) -> Role | None:
    """Return the matrix of a quantised operator, with the parts if all of them are stored."""
    stored = [read for name in names if name and (read := origin(scope, name, shaped=True)) is not None]
    matrix = next((read for read in stored if len(read.tensor.dims) >= _MATRIX), None)
    if matrix is None:
        return None
    origins = [origin(scope, name, shaped=True) for name in parts if name]
    held = tuple(part.tensor for part in origins if part is not None)
    whole = len(held) == len(origins) > 1
    bits, block = integer(node, "bits", 4), integer(node, "block_size", 128)
    quantised = Quantised(node.standard.rpartition(".")[2], held if whole else (), bits, block)
    blocks = node.standard in (_BLOCKS_PRODUCT, _BLOCKS_LOOKUP) or len(matrix.tensor.dims) > _MATRIX
    rows = blocks or matrix.turned != bool(integer(node, "transB", 0))
    return Role(matrix.tensor, not rows, quantised)


def _gathered_rows(outer: Scope, head: Role) -> Role | None:
    """Return the matrix of ``head`` as an embedding if Gathers look up all its parts by the same ids."""
    parts = {id(part) for part in head.quantised.parts} if head.quantised else set()
    ids: dict[str, set[int]] = {}
    for scope in scopes(outer) if parts else ():
        for node in scope.graph.nodes:
            if node.standard != "Gather" or len(node.inputs) < _MATRIX or integer(node, "axis", 0) != 0:
                continue
            stored = origin(scope, node.inputs[0])
            if stored is not None:
                ids.setdefault(node.inputs[1], set()).add(id(stored.tensor))
    if head.quantised is None or not any(parts <= gathered for gathered in ids.values()):
        return None
    return replace(head, quantised=replace(head.quantised, operator="Gather"))


def _head(scope: Scope, lookups: list[Role]) -> tuple[Role | None, Tensor | None]:
    outputs = sorted(scope.graph.outputs, key=lambda name: name != LOGITS)
    for output in outputs:
        for head, bias in _behind(scope, output):
            if _is_head(head, lookups, output):
                return head, bias if bias is not None and bias.dims[-1:] == [head.tokens] else None
    return None, None


def _is_head(head: Role, lookups: list[Role], output: str) -> bool:
    """Return whether a matrix has as many tokens as a lookup. `logits` may differ by a padded vocabulary."""
    if any(role.tokens == head.tokens for role in lookups):
        return True
    close = all(role.tokens <= 2 * head.tokens and head.tokens <= 2 * role.tokens for role in lookups)
    return output == LOGITS and close


def _behind(scope: Scope, name: str) -> Iterator[tuple[Role, Tensor | None]]:
    """Yield each matrix whose product the value is made of, nearest first, and the vector added to the product."""
    pending: deque[tuple[Scope, str, Tensor | None]] = deque([(scope, name, None)])
    seen = {(id(scope), name)}
    while pending and len(seen) < _STEPS:
        scope, name, bias = pending.popleft()
        scope, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor):
            continue
        node = producer[0]
        product = _product(scope, node)
        if product is not None:
            yield product, bias or (_vector(scope, node.inputs[2:]) if node.standard == "Gemm" else None)
            continue
        onward = _onward(scope, node)
        if node.standard == "Add":
            bias = _vector(scope, [operand for operand in node.inputs if operand not in onward])
        for inside, value in scope.inside(*producer) or [(scope, value) for value in onward]:
            if (id(inside), value) not in seen:
                seen.add((id(inside), value))
                pending.append((inside, value, bias))


def _onward(scope: Scope, node: Node) -> list[str]:
    if node.standard in _UNARY:
        return node.inputs[:1]
    if node.standard not in _JOINED | _WITH_A_CONSTANT:
        return []
    names = node.inputs[1:] if node.standard == "Where" else node.inputs
    computed = [name for name in names if name and not is_constant(scope, name)]
    if node.standard in _JOINED:
        return computed
    if len(computed) > 1:  # a temperature or a mask is an input; a quantised product has computed scales
        computed = [name for name in computed if scope.find(name)[1] is not None and not _is_scale(scope, name)]
    return computed if len(computed) == 1 else []


def _is_scale(scope: Scope, name: str) -> bool:
    """Return whether a value is a scale of `DynamicQuantizeLinear`, perhaps times a constant."""
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor):
            return False
        if producer[0].standard != "Mul":
            return producer[0].standard == "DynamicQuantizeLinear" and producer[1] == 1
        computed = [operand for operand in producer[0].inputs if not is_constant(scope, operand)]
        if len(computed) != 1:
            return False
        name = computed[0]
    return False


def _product(scope: Scope, node: Node) -> Role | None:
    """Return the matrix that a node multiplies by, with its rows or columns as tokens."""
    if node.standard == "Einsum":
        # The matrix of an Einsum such as ``bsh,vh->bsv``. One of its axes is summed, the other one is kept.
        operands, _, result = node.equation.replace(" ", "").partition("->")
        terms = operands.split(",")
        if len(terms) != len(node.inputs) != _MATRIX:
            return None
        for position, term in enumerate(terms):
            others = terms[1 - position] if len(terms) == _MATRIX else ""
            tokens = [axis for axis in term if axis in result and axis not in others]
            summed = [axis for axis in term if axis in others and axis not in result]
            if len(term) == _MATRIX and len(tokens) == len(summed) == 1:
                role = _matrix(scope, node.inputs[position], turned=term[1] == tokens[0])
                if role is not None:
                    return role
        return None
    if node.standard in _QUANTISED_PRODUCTS:
        whole = node.standard == _BLOCKS_PRODUCT and not any(node.inputs[4:5])  # with g_idx the columns are permuted
        return _blocks(scope, node, node.inputs[1:], node.inputs[1:4] if whole else [])
    if node.standard not in _PRODUCTS or len(node.inputs) < _MATRIX:
        return None
    right = _matrix(scope, node.inputs[1], turned=not integer(node, "transB", 0))
    return right or _matrix(scope, node.inputs[0], turned=bool(integer(node, "transA", 0)))


def _vector(scope: Scope, names: list[str]) -> Tensor | None:
    stored = origin(scope, names[0]) if names else None
    return stored.tensor if stored is not None and len(stored.tensor.dims) in (1, 2) else None


_SAME_IDS = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Where", "Clip", "Max", "Min",
    "Transpose", "Concat", "Mod", "Tile", "Pad", FED,
})  # fmt: skip
"""Operators that do not change token ids, except for shape, type and bounds."""
_OTHER_IDS = ("position_ids", "token_type_ids")
"""Inputs of exported graphs that look up positions and segments, whose tables may have as many rows as tokens."""
_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sum", "Gather", "GatherElements", "GatherND", "ScatterElements",
    "ScatterND", "Compress", "Trilu", "BitwiseAnd", "BitwiseOr", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or",
})  # fmt: skip
"""Operators that compute other token ids: an offset, a mask, another order."""


class Index(Enum):
    """Classes of lookup indices. Positions are `INDEPENDENT`."""

    IDS = auto()
    COMPUTED = auto()
    INDEPENDENT = auto()


def index_of(scope: Scope, name: str) -> Index | None:
    """Classify the value ``name`` as the index of a lookup. Inputs of positions or segments give ``None``."""
    reached = _input_behind(scope, name)
    if reached:
        return None if reached in _OTHER_IDS else Index.IDS
    return Index.COMPUTED if _is_computed(scope, name) else Index.INDEPENDENT


def _input_behind(scope: Scope, name: str) -> str:
    """Return the graph's input that is the value, changed only in shape, type or bounds. Empty: none is."""
    pending, seen = [(scope, name)], {(id(scope), name)}
    while pending and len(seen) < _STEPS:
        scope, name = pending.pop()
        scope, producer = scope.find(name)
        if producer is None:
            return name
        if isinstance(producer, Tensor) or producer[0].standard not in _SAME_IDS:
            continue
        for source in _data(producer[0]):
            if (id(scope), source) not in seen:
                seen.add((id(scope), source))
                pending.append((scope, source))
    return ""


def _is_computed(scope: Scope, name: str) -> bool:
    """Return whether the value is computed from inputs and constants alone, with at least one input of token ids."""
    pending, seen, inputs = [(scope, name)], {(id(scope), name)}, False
    while pending:
        scope, name = pending.pop()
        scope, producer = scope.find(name)
        if producer is None:
            inputs = inputs or (bool(name) and name not in _OTHER_IDS)
            continue
        if isinstance(producer, Tensor) or producer[0].standard == "Constant":
            continue
        if producer[0].standard not in _SAME_IDS | _ARITHMETIC or len(seen) > _STEPS:
            return False
        # The node's inputs that carry numbers, without conditions and shapes.
        node = producer[0]
        several = node.standard in _ARITHMETIC or node.standard in ("Where", "Concat", "Max", "Min")
        for source in node.inputs[node.standard == "Where" :] if several else node.inputs[:1]:
            if (id(scope), source) not in seen:
                seen.add((id(scope), source))
                pending.append((scope, source))
    return inputs


def _data(node: Node) -> list[str]:
    return node.inputs[1:] if node.standard == "Where" else node.inputs[:1]
