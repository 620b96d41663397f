"""Find nodes that a session of ONNX Runtime removes before it fuses others.

These are identity, no-op, Cast and Dropout elimination.
"""

from __future__ import annotations

import onnx_ir as ir

from tieconv.onnx.share.head_surroundings import only_user
from tieconv.onnx.share.uses import integer, is_standard


def made_by(node: ir.Node | None, *, undeclared: bool = False) -> ir.Node | None:
    """Return the node that computes a value in a session: ``node``, or an earlier one if ``node`` changes nothing.

    With ``undeclared``, a Cast from an undeclared type also counts as a node that changes nothing.
    """
    while node is not None:
        maybe = undeclared and cast_from(node) is ir.DataType.UNDEFINED
        value = node.inputs[0] if maybe else unchanged(node, cast_from(node))
        if value is None:
            break
        node = value.producer()
    return node


def read_by(node: ir.Node | None, dtype: ir.DataType) -> ir.Node | None:
    """Return the node that reads a value in a session: ``node``, or a later one if ``node`` changes nothing.

    ``dtype`` is the type of the value.
    """
    while node is not None and unchanged(node, dtype) is not None:
        node = only_user(node)
    return node


def unchanged(node: ir.Node, dtype: ir.DataType | None) -> ir.Value | None:
    """Return the value that a node passes on unchanged, or ``None`` if the node computes something.

    A session removes such nodes before it fuses others. ``dtype`` is the type that a Cast reads.
    """
    if is_standard(node, "Identity", "Dropout") or (is_standard(node, "Cast") and cast_to(node) is dtype):
        return node.inputs[0]
    if is_standard(node, "Add", "Sub"):
        places = (1,) if node.op_type == "Sub" else (1, 0)
        return next((node.inputs[1 - position] for position in places if _is_zero(node.inputs[position])), None)
    return None


def _is_zero(value: ir.Value | None) -> bool:
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()


def cast_from(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast reads."""
    value = cast.inputs[0] if cast is not None and is_standard(cast, "Cast") else None
    return None if value is None else value.dtype or ir.DataType.UNDEFINED


def cast_to(cast: ir.Node | None) -> ir.DataType | None:
    """Return the type that a Cast returns."""
    return ir.DataType(integer(cast, "to", 0)) if cast is not None and is_standard(cast, "Cast") else None
