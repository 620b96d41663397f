"""Find the input embedding, the output head and its bias by what the nodes do with initializers."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.value_type import record
from tieconv.formats.onnx.indices import Index, index_of
from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.structure import Scope, integer, is_constant, origin, scopes

LOGITS = "logits"
ON_THE_WAY = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Tanh", "LogSoftmax", "Softmax"})
"""Operators between the head's product and the output that keep one entry for each token."""
EMBED_LAYER_NORM, WORDS = "com.microsoft.EmbedLayerNormalization", 2
"""The node of ONNX Runtime's optimiser for BERT's embeddings, and its input with the token matrix."""
_WITH_A_CONSTANT = frozenset({"Add", "Mul", "Div"})
_STEPS = 1000


@record
class Role:
    """A matrix in its role. ``turned`` is true if it is stored as [H, V], with V tokens."""

    tensor: Tensor
    turned: bool

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

    The head is the matrix of a MatMul or Gemm whose product reaches an output, `logits` first. On the way only
    constants are added, multiplied or divided, or tanh, softmax, casts and reshapes are applied. The head has as many
    tokens as a matrix that is looked up. The embedding is the matrix of a Gather or an EmbedLayerNormalization. Its
    indices are an input, or are computed from one.
    """
    lookups = list(_lookups(scope))
    by_ids = [role for role, index in lookups if index is Index.IDS]
    computed = [role for role, index in lookups if index is Index.COMPUTED]
    head, bias = _head(scope, [*by_ids, *computed])
    largest = max(by_ids or computed, key=lambda role: role.tokens, default=None)
    if head is None:
        return Roles(largest)
    fitting = [role for role in (*by_ids, *computed, *(role for role, _ in lookups)) if role.tokens == head.tokens]
    embedding = next((role for role in fitting if role.tensor is head.tensor), None) or next(iter(fitting), None)
    return Roles(embedding or largest, head, bias)


def _lookups(outer: Scope) -> Iterator[tuple[Role, Index]]:
    """Yield each matrix that a node looks up by rows or columns, and the class of its indices."""
    for scope in scopes(outer):
        for node in scope.graph.nodes:
            if node.standard == "Gather" and len(node.inputs) > 1:
                matrix, ids, axis = node.inputs[0], node.inputs[1], integer(node, "axis", 0) % 2
            elif node.standard == EMBED_LAYER_NORM and len(node.inputs) > WORDS:
                matrix, ids, axis = node.inputs[WORDS], node.inputs[0], 0
            else:
                continue
            stored = origin(scope, matrix)
            if stored is not None and len(stored.tensor.dims) == 2:
                yield Role(stored.tensor, stored.turned != (axis == 1)), index_of(scope, ids)


def _head(scope: Scope, lookups: list[Role]) -> tuple[Role | None, Tensor | None]:
    outputs = sorted(scope.graph.outputs, key=lambda name: name != LOGITS)
    for output in outputs:
        head, bias = _behind(scope, output)
        if head is not None and _is_head(head, lookups, output):
            return head, bias if bias is not None and bias.dims[-1:] == [head.tokens] else None
    return None, None


def _is_head(head: Role, lookups: list[Role], output: str) -> bool:
    """Return whether a matrix has as many tokens as a lookup. `logits` may differ by a padded vocabulary."""
    if any(role.tokens == head.tokens for role in lookups):
        return True
    close = all(role.tokens <= 2 * head.tokens and head.tokens <= 2 * role.tokens for role in lookups)
    return output == LOGITS and close


def _behind(scope: Scope, name: str) -> tuple[Role | None, Tensor | None]:
    """Return the matrix whose product the value is, and the vector added to it."""
    bias: Tensor | None = None
    for _ in range(_STEPS):
        scope, producer = scope.find(name)
        if producer is None or isinstance(producer, Tensor):
            break
        node, index = producer
        if node.standard == "If":
            scope, name = _branch(scope, node, index)
            continue
        if node.standard in ("MatMul", "Gemm", "com.microsoft.FusedMatMul") and len(node.inputs) > 1:
            return _product(scope, node), bias or _vector(scope, node.inputs[2:])
        if node.standard in ON_THE_WAY and node.inputs:
            name = node.inputs[0]
            continue
        computed = [operand for operand in node.inputs if not is_constant(scope, operand)]
        if node.standard not in _WITH_A_CONSTANT or len(computed) != 1 or len(node.inputs) != 2:
            break
        if node.standard == "Add":
            bias = _vector(scope, [operand for operand in node.inputs if operand not in computed])
        name = computed[0]
    return None, None


def _branch(scope: Scope, node: Node, index: int) -> tuple[Scope, str]:
    """Return the output of the node's first branch."""
    position = next(position for position, other_node in enumerate(scope.graph.nodes) if other_node is node)
    for inside in scope.inner[position].values():
        if index < len(inside.graph.outputs):
            return inside, inside.graph.outputs[index]
    return scope, ""


def _product(scope: Scope, node: Node) -> Role | None:
    stored = origin(scope, node.inputs[1])
    if stored is None or len(stored.tensor.dims) != 2:
        return None
    return Role(stored.tensor, stored.turned == bool(integer(node, "transB", 0)))


def _vector(scope: Scope, names: list[str]) -> Tensor | None:
    stored = origin(scope, names[0]) if names else None
    return stored.tensor if stored is not None and len(stored.tensor.dims) in (1, 2) else None
