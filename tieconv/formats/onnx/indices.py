"""What the numbers are by which a node looks up rows: token ids of an input, or computed from some."""

from __future__ import annotations

from enum import Enum, auto

from tieconv.formats.onnx.messages import Node, Tensor
from tieconv.formats.onnx.structure import Scope

_IDS = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Where", "Clip", "Max", "Min",
    "Transpose", "Concat", "Mod", "Tile", "Pad",
})  # fmt: skip
"""Operators that leave token ids token ids."""
_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sum", "Gather", "GatherElements", "GatherND", "ScatterElements",
    "ScatterND", "Compress", "Trilu", "BitwiseAnd", "BitwiseOr", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or",
})  # fmt: skip
"""Operators by which other token ids are computed: an offset, a mask, another order."""
_STEPS = 1000


class Index(Enum):
    """Where the numbers of a lookup come from. Positions, which are counted, are `INDEPENDENT`."""

    IDS = auto()
    COMPUTED = auto()
    INDEPENDENT = auto()


def index_of(scope: Scope, name: str) -> Index:
    """What the value is as the index of a lookup."""
    if _reaches_input(scope, name):
        return Index.IDS
    return Index.COMPUTED if _is_computed(scope, name) else Index.INDEPENDENT


def _reaches_input(scope: Scope, name: str) -> bool:
    """Whether an input of the graph is the value, changed in nothing but its shape, its type or its bounds."""
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
    """Whether an input is among what the value is computed from, and nothing else but constants is."""
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
    """The input that token ids come by."""
    return node.inputs[1:] if node.standard == "Where" else node.inputs[:1]


def _all_data(node: Node) -> list[str]:
    """The inputs that numbers come by: neither a condition nor a shape."""
    several = node.standard in _ARITHMETIC or node.standard in ("Where", "Concat", "Max", "Min")
    return node.inputs[node.standard == "Where" :] if several else node.inputs[:1]
