"""Dequantise the matrices of a graph, as its operators do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tieconv.checkpoint.value_type import record
from tieconv.onnx.graph.model import sides
from tieconv.onnx.share.find import integer, is_standard
from tieconv.onnx.share.node_patterns import Names, replace_node
from tieconv.onnx.share.quantised import Table, heads, lookups

_MATRIX = 2
_STEP = 1 << 22
"""Elements that are dequantised at a time."""
_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4})


@record
class Matrix:
    """A quantised matrix of ``shape`` (R, C). ``values`` returns what the graph computes with, in float32.

    Each call of ``values`` dequantises again, so that only one float matrix is in memory.
    ``group`` elements of a row, one after another, share a scale; more than C if rows share it. ``looked_up`` and
    ``multiplied`` say how the graph uses the matrix.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    name: str
    operator: str
    shape: tuple[int, int]
    values: Callable[[], npt.NDArray[np.float32]]
    bits: int
    group: int
    symmetric: bool
    looked_up: bool
    multiplied: bool


def matrices(model: ir.Model) -> Iterator[Matrix]:
    """Yield each quantised matrix of the graph once for each set of scales."""
    seen: set[tuple[int, int]] = set()
    for table in (*heads(model), *lookups(model)):
        key = (id(table.codes), id(table.scales))
        if key not in seen:
            seen.add(key)
            yield _of_blocks(table, looked_up={id(lookup.codes) for lookup in lookups(model)})
    for graph in model.graphs():
        for node in graph:
            made = None
            if is_standard(node, "DequantizeLinear"):
                made = _of_dequantised(node)
            elif is_standard(node, "MatMulInteger"):
                made = _of_integers(node)
            if made is not None:
                yield made


def unread(model: ir.Model) -> Iterator[str]:
    """Yield clauses about quantised nodes whose matrix `matrices` cannot dequantise."""
    read = {id(table.node) for table in (*heads(model), *lookups(model))}
    for graph in model.graphs():
        for node in graph:
            if node.op_type in ("MatMulNBits", "GatherBlockQuantized") and id(node) not in read:
                codes = node.inputs[1 if node.op_type == "MatMulNBits" else 0]
                if codes is not None and codes.producer() is None:
                    yield f"{node.op_type} {node.name} reads codes in a form that tieconv does not know"
            elif node.op_type in _UNKNOWN:
                yield f"{node.op_type} {node.name} has no dequantised form that tieconv knows"


_UNKNOWN = frozenset({
    "MatMulBnb4", "QLinearMatMul", "QGemm", "QMoE", "QAttention", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    "QEmbedLayerNormalization", "ConvInteger", "QLinearConv",
})  # fmt: skip


def _of_blocks(table: Table, looked_up: set[int]) -> Matrix:
    width = integer(table.node, "K", table.blocks * table.block)
    multiplied = table.node.op_type == "MatMulNBits"
    gathered = id(table.codes) in looked_up or _gathered(table.codes)

    def values() -> npt.NDArray[np.float32]:
        made = np.empty((table.rows, width), np.float32)
        step = max(1, _STEP // (table.blocks * table.block))
        packed = _numbers(table.codes).reshape(table.rows, -1)
        scales, zeros = _grid(table)
        for start in range(0, table.rows, step):
            part = slice(start, start + step)
            codes = _unpacked(packed[part], table.bits)[:, : table.blocks * table.block]
            blocks = codes.reshape(-1, table.blocks, table.block).astype(np.float32)
            made[part] = ((blocks - zeros[part]) * scales[part]).reshape(len(blocks), -1)[:, :width]
        return made

    return Matrix(
        str(table.codes.name), table.node.op_type, (table.rows, width), values, table.bits, table.block,
        table.zeros is None, gathered, multiplied,
    )  # fmt: skip


def _grid(table: Table) -> tuple[Any, Any]:
    """Return scales and zero points, each R × blocks × 1."""
    scales = _numbers(table.scales).astype(np.float32).reshape(table.rows, table.blocks, 1)
    zeros: Any = np.full_like(scales, 1 << (table.bits - 1))
    if table.zeros is not None and not _is_integer(table.zeros):
        zeros = _numbers(table.zeros).astype(np.float32).reshape(table.rows, table.blocks, 1)
    elif table.zeros is not None:
        packed = _unpacked(_numbers(table.zeros).reshape(table.rows, -1), table.bits)
        zeros = packed.reshape(table.rows, -1)[:, : table.blocks, None].astype(np.float32)
    return scales, zeros


def _is_integer(value: ir.Value) -> bool:
    """Return whether zero points are integers. Some quantisers store them as floats."""
    return value.dtype is ir.DataType.UINT8


def _gathered(codes: ir.Value) -> bool:
    return any(is_standard(node, "Gather") and index == 0 for node, index in codes.uses())


def _of_dequantised(node: ir.Node) -> Matrix | None:
    """Return the matrix of a DequantizeLinear, also behind a Gather or Transpose of its codes."""
    gathers = False
    codes = node.inputs[0]
    while codes is not None and (maker := codes.producer()) is not None and is_standard(maker, "Gather", "Transpose"):
        gathers = gathers or maker.op_type == "Gather"
        codes = maker.inputs[0]
    if not _is_codes(codes):
        return None
    assert codes is not None
    stored = codes
    scale = _floats(node.inputs[1])
    zeros = node.inputs[_MATRIX] if len(node.inputs) > _MATRIX else None
    zero = np.zeros_like(scale) if zeros is None else _floats(zeros)
    shape, group = _layout(node, sides(stored.const_value.shape), scale.size)  # type: ignore[union-attr]

    def values() -> npt.NDArray[np.float32]:
        numbers, scales, shift = _by_groups(node, _numbers(stored).astype(np.float32), scale, zero)
        made: npt.NDArray[np.float32] = (numbers - shift) * scales
        return made

    users = [user for user, _ in node.outputs[0].uses()]
    looked_up = gathers or any(is_standard(user, "Gather") for user in users)
    multiplied = not gathers and any(not is_standard(user, "Gather") for user in users)
    bits = 4 if codes.dtype in (ir.DataType.INT4, ir.DataType.UINT4) else 8
    symmetric = not zero.any()
    name = str(codes.name)
    return Matrix(name, "DequantizeLinear", shape, values, bits, group, symmetric, looked_up, multiplied)


def _layout(node: ir.Node, shape: tuple[int, ...], scales: int) -> tuple[tuple[int, int], int]:
    """Return the shape of the matrix with each group in a row, and the group's size."""
    rows, columns = shape
    if scales == 1:
        return (rows, columns), rows * columns
    block = integer(node, "block_size", 0)
    by_column = integer(node, "axis", 1) % _MATRIX == 1
    moved = (columns, rows) if by_column != bool(block) else (rows, columns)
    return moved, block or moved[1]


def _by_groups(node: ir.Node, values: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    """Return values, scales and zero points that can be combined, with each group in a row."""
    if scale.size == 1:
        return values, scale, zero
    axis, block = integer(node, "axis", 1) % values.ndim, integer(node, "block_size", 0)
    if not block:
        values = np.moveaxis(values, axis, 0)
        return values, scale.reshape(-1, 1), zero.reshape(-1, 1)
    values = np.moveaxis(values, axis, -1)
    scale, zero = (np.repeat(np.moveaxis(array, axis, -1), block, -1) for array in (scale, zero))
    return values, scale[..., : values.shape[-1]], zero[..., : values.shape[-1]]


def _of_integers(node: ir.Node) -> Matrix | None:
    codes = node.inputs[1]
    scale = b_scale(node)
    if not _is_codes(codes) or scale is None:
        return None
    assert codes is not None
    zero = _floats(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else np.zeros(1, np.float32)
    stored, factor = codes, _floats(scale)
    inputs, outputs = sides(stored.const_value.shape)  # type: ignore[union-attr]

    def values() -> npt.NDArray[np.float32]:
        made = _numbers(stored).astype(np.float32)
        made -= zero
        made *= factor
        turned: npt.NDArray[np.float32] = made.T
        return turned

    group = inputs if factor.size > 1 else inputs * outputs
    return Matrix(
        str(stored.name), "MatMulInteger", (outputs, inputs), values, 8, group, not zero.any(), _gathered(stored),
        multiplied=True,
    )  # fmt: skip


def b_scale(node: ir.Node) -> ir.Value | None:
    """Return the scale of a MatMulInteger's weight: the stored factor that multiplies its product."""
    users = [user for user, _ in node.outputs[0].uses()]
    while users and is_standard(users[0], "Cast"):
        users = [user for user, _ in users[0].outputs[0].uses()]
    for user in users:
        for factor in user.inputs if is_standard(user, "Mul") else ():
            maker = factor.producer() if factor is not None else None
            inputs = maker.inputs if maker is not None and is_standard(maker, "Mul") else (factor,)
            stored = next((value for value in inputs if value is not None and value.const_value is not None), None)
            if stored is not None:
                return stored
    return None


def _is_codes(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype in _CODES and len(tensor.shape) == _MATRIX


def _numbers(value: ir.Value) -> Any:
    assert value.const_value is not None
    return value.const_value.numpy()


def _floats(value: ir.Value | None) -> Any:
    assert value is not None
    return np.atleast_1d(_numbers(value)).astype(np.float32)


def _unpacked(packed: Any, bits: int) -> Any:
    """Return one code for each element; the lower half of a byte is first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


# Write a copy of a quantised graph whose activations stay float, so that only faults and rounding remain.


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
    replace_node(product, made, Names(model))
    return True


def _scaled(node: ir.Node) -> ir.Node | None:
    """Return the Mul that scales the integer product."""
    users = [user for user, _ in node.outputs[0].uses()]
    while len(users) == 1 and is_standard(users[0], "Cast"):
        users = [user for user, _ in users[0].outputs[0].uses()]
    return users[0] if len(users) == 1 and is_standard(users[0], "Mul") else None
