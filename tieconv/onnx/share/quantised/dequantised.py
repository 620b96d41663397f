"""Move DequantizeLinear behind the lookup of an embedding, and behind the Transpose of a head.

A session folds a Transpose of dequantised codes into a second matrix of codes. The pass lets the
lookup and the product read the codes. Then it can store them once, in the order of the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import RUNTIMES
from tieconv.onnx.graph.model import opset, sides
from tieconv.onnx.share.patterns.interface import Names, constant, replace
from tieconv.onnx.share.uses import MATRIX, integer, is_standard

_OLDEST_OPSET = 13
FUSED = f"{RUNTIMES} fuses a MatMul with the DequantizeLinear of codes that no other node reads, and rounds differently"
"""Why codes with several scales stay a copy if a MatMul reads them alone."""
_CODES = (ir.DataType.INT8, ir.DataType.UINT8)


@record
class _Codes:
    """A DequantizeLinear of a stored matrix. ``axis`` is that of its scales, or ``None`` for one scale."""

    node: ir.Node
    codes: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    axis: int | None

    @property
    def looked_up(self) -> list[ir.Node]:
        """The nodes that look up dequantised rows."""
        users = [node for node, index in self.node.outputs[0].uses() if index == 0]
        return [node for node in users if is_standard(node, "Gather") and integer(node, "axis", 0) in (0, -MATRIX)]

    @property
    def turned(self) -> list[ir.Node]:
        """The nodes that transpose the dequantised matrix."""
        users = [node for node, _ in self.node.outputs[0].uses() if is_standard(node, "Transpose")]
        perms = [node.attributes.get("perm") for node in users]
        return [node for node, perm in zip(users, perms, strict=True) if perm is None or list(perm.as_ints()) == [1, 0]]


def is_fused(value: ir.Value) -> bool:
    """Return whether a session fuses the only product that reads the codes with their DequantizeLinear."""
    users = [node for node, _ in value.uses()]
    if len(users) != 1 or not is_standard(users[0], "DequantizeLinear"):
        return False
    scale = users[0].inputs[1]
    if scale is None or scale.const_value is None or scale.const_value.size == 1:
        return False
    users = [node for node, _ in users[0].outputs[0].uses()]
    while len(users) == 1 and is_standard(users[0], "Transpose"):
        users = [node for node, _ in users[0].outputs[0].uses()]
    return len(users) == 1 and is_standard(users[0], "MatMul")


def move_dequantisation(model: ir.Model, names: Names) -> None:
    """Rewrite the lookups of codes that a product of the graph holds too, and the Transposes of such a product.

    Every element is dequantised with the same arithmetic, so the outputs keep every bit.
    """
    dequantised = list(_dequantised(model)) if opset(model) >= _OLDEST_OPSET else []
    for lookup in [lookup for lookup in dequantised if lookup.looked_up]:
        products = [product for product in dequantised if _multiplies(product) and _is_copy(lookup, product)]
        for node in lookup.looked_up if products else ():
            _look_up_codes(lookup, node, names)
        for product in products:
            for node in product.turned:
                _turn_codes(product, node, names)
        _remove_unread([lookup, *products])


def _dequantised(model: ir.Model) -> list[_Codes]:
    nodes = [node for node in model.graph if is_standard(node, "DequantizeLinear")]
    return [made for node in nodes if (made := _codes(node)) is not None]


def _codes(node: ir.Node) -> _Codes | None:
    codes, scale, *more = node.inputs
    zero = more[0] if more else None
    parts = [codes, scale, *([zero] if zero is not None else [])]
    if any(part is None or part.const_value is None or part.is_graph_input() for part in parts):
        return None
    assert codes is not None and scale is not None and codes.const_value is not None and scale.const_value is not None
    if codes.dtype not in _CODES or len(codes.const_value.shape) != MATRIX or integer(node, "block_size", 0):
        return None
    axis = integer(node, "axis", 1) % MATRIX if scale.const_value.size > 1 else None
    return _Codes(node, codes, scale, zero, axis)


def _multiplies(lookup: _Codes) -> bool:
    return any(node not in lookup.looked_up for node, _ in lookup.node.outputs[0].uses())


def _is_copy(lookup: _Codes, product: _Codes) -> bool:
    """Return whether a product holds the codes of a lookup in the order of the product: [H, V], or transposed."""
    if product.codes is lookup.codes:
        return bool(product.turned)
    if lookup.axis is not None or product.axis is not None:
        return False  # see `FUSED`
    left, right = _array(lookup), _array(product)
    if product.turned:
        return np.array_equal(left, right)
    return left.shape == right.shape[::-1] and np.array_equal(left, right.T)


def _array(lookup: _Codes) -> np.ndarray:
    assert lookup.codes.const_value is not None
    return lookup.codes.const_value.numpy()


def _look_up_codes(lookup: _Codes, node: ir.Node, names: Names) -> None:
    """Gather codes, and dequantise the gathered rows."""
    ids = node.inputs[1]
    nodes = [ir.node("Gather", [lookup.codes, ids])]
    nodes[0].outputs[0].type = lookup.codes.type
    codes = nodes[0].outputs[0]
    if lookup.axis is None:
        nodes.append(ir.node("DequantizeLinear", [codes, lookup.scale, *_some(lookup.zero)]))
    elif lookup.axis == 1:
        nodes.append(ir.node("DequantizeLinear", [codes, lookup.scale, *_some(lookup.zero)], {"axis": -1}))
    else:
        nodes += _by_row(lookup, node, codes, names)
    replace(node, nodes, names)


def _by_row(lookup: _Codes, node: ir.Node, codes: ir.Value, names: Names) -> list[ir.Node]:
    """Return nodes for (code − zero point) × scale, with the scale and the zero point of each gathered row."""
    ids, end = node.inputs[1], constant(node, [-1], names, "end")
    dtype = int(lookup.scale.dtype or ir.DataType.FLOAT)
    nodes = [ir.node("Cast", [codes], {"to": dtype})]
    value = nodes[0].outputs[0]
    if lookup.zero is not None:
        nodes += (points := _rows(lookup.zero, ids, end, dtype))
        nodes.append(ir.node("Sub", [value, points[-1].outputs[0]]))
        value = nodes[-1].outputs[0]
    nodes += (scales := _rows(lookup.scale, ids, end, None))
    return [*nodes, ir.node("Mul", [value, scales[-1].outputs[0]])]


def _rows(part: ir.Value, ids: ir.Value | None, end: ir.Value, dtype: int | None) -> list[ir.Node]:
    nodes = [ir.node("Gather", [part, ids])]
    nodes.append(ir.node("Unsqueeze", [nodes[-1].outputs[0], end]))
    if dtype is not None:
        nodes.append(ir.node("Cast", [nodes[-1].outputs[0]], {"to": dtype}))
    return nodes


def _turn_codes(lookup: _Codes, node: ir.Node, names: Names) -> None:
    """Transpose codes, and dequantise the transposed matrix."""
    assert lookup.codes.const_value is not None
    turned = ir.node("Transpose", [lookup.codes], {"perm": [1, 0]})
    turned.outputs[0].type = lookup.codes.type
    turned.outputs[0].shape = ir.Shape(sides(lookup.codes.const_value.shape)[::-1])
    axis = {} if lookup.axis is None else {"axis": 1 - lookup.axis}
    replace(
        node, [turned, ir.node("DequantizeLinear", [turned.outputs[0], lookup.scale, *_some(lookup.zero)], axis)], names
    )


def _some(value: ir.Value | None) -> Sequence[ir.Value]:
    return () if value is None else (value,)


def _remove_unread(dequantised: Sequence[_Codes]) -> None:
    for lookup in dequantised:
        output = lookup.node.outputs[0]
        if lookup.node.graph is not None and not output.uses() and not output.is_graph_output():
            lookup.node.graph.remove(lookup.node, safe=True)
