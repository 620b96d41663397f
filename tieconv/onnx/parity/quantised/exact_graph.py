"""Write a copy of a quantised graph whose activations stay float, so that only faults and rounding remain."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from tieconv.onnx.parity.quantised.matrices import b_scale
from tieconv.onnx.share.patterns.interface import Names, replace
from tieconv.onnx.share.uses import is_standard

_LEVEL = "accuracy_level"
_EXACT = (0, 1)
"""Levels at which MatMulNBits multiplies in float32."""


def exact_copy(path: str, directory: Path) -> str | None:
    """Write the copy to ``directory`` and return its path. Return ``None`` if no activation is quantised.

    MatMulNBits gets the accuracy level of float32. A MatMulInteger on a quantised activation becomes a MatMul on the
    dequantised weight.
    """
    model = ir.load(path)
    changed = [_exact_level(node) or _float_product(node, model) for node in list(model.graph.all_nodes())]
    if not any(changed):
        return None
    to = directory / "exact.onnx"
    ir.save(model, to, external_data="exact.onnx.data")
    return os.fspath(to)


def activation_forms(path: str) -> frozenset[str]:
    """Return how the graph quantises activations: ``tensor`` as MatMulInteger does, ``block`` as MatMulNBits does."""
    nodes = list(ir.load(path).graph.all_nodes())
    levels = (node.attributes.get(_LEVEL) for node in nodes if node.op_type == "MatMulNBits")
    block = any(level is not None and level.as_int() not in _EXACT for level in levels)
    tensor = any(node.op_type == "MatMulInteger" for node in nodes)
    return frozenset(name for name, used in (("block", block), ("tensor", tensor)) if used)


def _exact_level(node: ir.Node) -> bool:
    level = node.attributes.get(_LEVEL) if node.op_type == "MatMulNBits" else None
    if level is None or level.as_int() in _EXACT:
        return False
    node.attributes.pop(_LEVEL)
    return True


def _float_product(node: ir.Node, model: ir.Model) -> bool:
    if not is_standard(node, "MatMulInteger") or node.graph is None:
        return False
    scale = b_scale(node)
    quantised = node.inputs[0].producer() if node.inputs[0] is not None else None
    product = _scaled(node)
    if scale is None or product is None or quantised is None or not is_standard(quantised, "DynamicQuantizeLinear"):
        return False
    zeros = [] if len(node.inputs) < 4 or node.inputs[3] is None else [node.inputs[3]]
    per_column = scale.shape is not None and len(scale.shape) == 1
    weight = ir.node("DequantizeLinear", [node.inputs[1], scale, *zeros], {"axis": 1} if per_column else {})
    made = [weight, ir.node("MatMul", [quantised.inputs[0], weight.outputs[0]])]
    replace(product, made, Names(model))
    return True


def _scaled(node: ir.Node) -> ir.Node | None:
    """Return the Mul that scales the integer product."""
    users = [user for user, _ in node.outputs[0].uses()]
    while len(users) == 1 and is_standard(users[0], "Cast"):
        users = [user for user, _ in users[0].outputs[0].uses()]
    return users[0] if len(users) == 1 and is_standard(users[0], "Mul") else None
