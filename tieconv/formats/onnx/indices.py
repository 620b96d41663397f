"""Classify the indices of a lookup: token ids of an input, numbers computed from them, or others."""

from __future__ import annotations

from enum import Enum, auto

from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.structure import Scope

_IDS = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Where", "Clip", "Max", "Min",
    "Transpose", "Concat", "Mod", "Tile", "Pad",
})  # fmt: skip
"""Operators that do not change token ids, except for shape, type and bounds."""
_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sum", "Gather", "GatherElements", "GatherND", "ScatterElements",
    "ScatterND", "Compress", "Trilu", "BitwiseAnd", "BitwiseOr", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or",
})  # fmt: skip
"""Operators that compute other token ids: an offset, a mask, another order."""
_STEPS = 1000


class Index(Enum):
    """Classes of lookup indices. Positions are `INDEPENDENT`."""

    IDS = auto()
    COMPUTED = auto()
    INDEPENDENT = auto()


def index_of(scope: Scope, name: str) -> Index:
    """Classify the value ``name`` as the index of a lookup."""
    if _reaches_input(scope, name):
        return Index.IDS
    return Index.COMPUTED if _is_computed(scope, name) else Index.INDEPENDENT


def _reaches_input(scope: Scope, name: str) -> bool:
    """Return whether the value is an input of the graph, changed only in shape, type or bounds."""
    pending, seen = [(scope, name)], {(id(scope), name)}
    while pending and len(seen) < _STEPS:
        scope, name = pending.pop()
        scope, producer = scope.find(name)
        if producer is None:
            return bool(name)
        if isinstance(producer, Tensor) or producer[0].standard not in _IDS:
            continue
        for source in _data(producer[0]):
            if (id(scope), source) not in seen:
                seen.add((id(scope), source))
                pending.append((scope, source))
    return False


def _is_computed(scope: Scope, name: str) -> bool:
    """Return whether the value is computed from inputs and constants alone, with at least one input."""
    pending, seen, inputs = [(scope, name)], {(id(scope), name)}, False
    while pending:
        scope, name = pending.pop()
        scope, producer = scope.find(name)
        if producer is None:
            inputs = inputs or bool(name)
            continue
        if isinstance(producer, Tensor) or producer[0].standard == "Constant":
            continue
        if producer[0].standard not in _IDS | _ARITHMETIC or len(seen) > _STEPS:
            return False
        for source in _all_data(producer[0]):
            if (id(scope), source) not in seen:
                seen.add((id(scope), source))
                pending.append((scope, source))
    return inputs


def _data(node: Node) -> list[str]:
    """Return the node's inputs that carry token ids."""
    return node.inputs[1:] if node.standard == "Where" else node.inputs[:1]


def _all_data(node: Node) -> list[str]:
    """Return the node's inputs that carry numbers, without conditions and shapes."""
    several = node.standard in _ARITHMETIC or node.standard in ("Where", "Concat", "Max", "Min")
    return node.inputs[node.standard == "Where" :] if several else node.inputs[:1]
