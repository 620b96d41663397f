"""List the float constants of a graph by where nodes use them, and write the graph with another value there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.graph.file import DTYPES

EPSILON = "epsilon"
_PASSES = frozenset({"Cast", "CastLike", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand"})
"""Operators behind which a constant has the same meaning."""
_ROOTS = frozenset({"Sqrt", "Pow"})
_DEFAULT = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators whose epsilon is 1e-5 if they have no such attribute."""
LONGEST_VECTOR = 4096
Floats = npt.NDArray[np.float64]
Use = tuple[int, int | str]
"""A node by its number in the graph, and the number of its input or the name of its attribute."""


@record
class Value:
    """A constant at one place of a node: an input by its number, or an attribute by its name."""

    __eq__ = object.__eq__  # compare by identity: arrays have no useful equality
    __hash__ = object.__hash__

    name: str
    values: Floats
    key: int | str
    epsilon: bool


@record
class Constant:
    """Equal constants with one meaning. ``name`` is the first one's, ``uses`` are the places that read them.

    ``values`` has no axes for a number. ``epsilon`` is true for numbers that are added before a root. ``operator`` has
    the types of the nodes.
    """

    __eq__ = object.__eq__  # compare by identity: arrays have no useful equality
    __hash__ = object.__hash__

    name: str
    values: Floats
    operator: str
    epsilon: bool
    uses: tuple[Use, ...]

    @property
    def number(self) -> float:
        """The value of a constant with one element."""
        return float(self.values.reshape(-1)[0])


def graph_constants(model: ir.Model) -> list[Constant]:
    """Return the finite constants other than zero: numbers, and vectors of up to 4096 elements.

    A soft cap is read by operators of two types. Such a number is listed for all types and for each.
    """
    groups: dict[tuple[object, ...], list[tuple[Value, str, Use]]] = defaultdict(list)
    for index, node in enumerate(_nodes(model)):
        for value in (*_inputs(node), *_attributes(node)):
            if np.isfinite(value.values).all() and value.values.any():
                group = (value.values.shape, value.values.tobytes(), value.epsilon)
                groups[group].append((value, node.op_type, (index, value.key)))
    return [constant for uses in groups.values() for constant in _by_operator(uses)]


def _by_operator(uses: list[tuple[Value, str, Use]]) -> Iterator[Constant]:
    operators = dict.fromkeys(operator for _, operator, _ in uses)
    for chosen in ([tuple(operators)] if len(operators) > 1 else []) + [(operator,) for operator in operators]:
        part = [(value, use) for value, operator, use in uses if operator in chosen]
        first = part[0][0]
        yield Constant(first.name, first.values, "/".join(chosen), first.epsilon, tuple(use for _, use in part))


def replaced(path: str, constant: Constant, values: Floats) -> bytes:
    """Return the bytes of the graph at ``path`` with other ``values`` of the constant. Its data files stay in use."""
    model = ir.load(path)
    nodes = list(_nodes(model))
    for number, (index, key) in enumerate(constant.uses):
        node = nodes[index]
        if isinstance(key, str):
            node.attributes[key] = ir.AttrFloat32(key, float(values.reshape(-1)[0]))
            continue
        tensor = _tensor(node.inputs[key])
        assert tensor is not None and node.graph is not None
        array = tensor.numpy()
        made = ir.node("Constant", [], {"value": ir.tensor(values.reshape(array.shape).astype(array.dtype))})
        made.outputs[0].name = f"tieconv.constant.{number}"
        node.graph.insert_before(node, made)
        node.replace_input_with(key, made.outputs[0])
    data: bytes = ir.to_proto(model).SerializeToString()
    return data


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _inputs(node: ir.Node) -> Iterator[Value]:
    for key, value in enumerate(node.inputs):
        tensor = _tensor(value)
        if value is None or tensor is None:
            continue
        array = np.asarray(tensor.numpy(), np.float64)
        numbers = array.reshape(()) if array.size == 1 else array.reshape(-1)
        yield Value(str(value.name), numbers, key, array.size == 1 and _before_root(node))


def _attributes(node: ir.Node) -> Iterator[Value]:
    if node.op_type == "Constant":
        return
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.FLOAT and attribute.value is not None:
            yield Value(str(node.name), np.array(float(attribute.value)), name, name == EPSILON)
    if node.op_type in _DEFAULT and EPSILON not in node.attributes:
        yield Value(str(node.name), np.array(1e-5), EPSILON, True)


def _tensor(value: Any) -> Any:
    """Return the float tensor of a constant with at most one long axis, or ``None``."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype.name not in DTYPES or tensor.dtype.name == "BFLOAT16":
        return None
    sides = [side for side in tensor.shape.numpy() if side != 1]
    return tensor if len(sides) < 2 and all(1 < side <= LONGEST_VECTOR for side in sides) else None


def _before_root(node: ir.Node) -> bool:
    """Return whether the constant is added and the sum's root is next."""
    while node.op_type in _PASSES:
        users = [user for user, _ in node.outputs[0].uses()]
        if len(users) != 1:
            return False
        (node,) = users
    return node.op_type == "Add" and any(user.op_type in _ROOTS for user, _ in node.outputs[0].uses())
