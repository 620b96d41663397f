"""Let an embedding read the quantised matrix of its head."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.onnx.graph.model import sides
from tieconv.onnx.quantise.products import lookups
from tieconv.onnx.quantise.scheme import BLOCK
from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.patterns.interface import Names, constant, replace
from tieconv.onnx.share.quantised.block_tables import LOOKUP, heads


def read_blocks(model: ir.Model, embedding: str, head: str) -> str:
    """Make the lookups of ``embedding`` read the codes of MatMulNBits that were made from its transpose ``head``.

    The codes are reshaped for GatherBlockQuantized; `dedup` removes the Reshape. Return the name of the codes; empty
    without a lookup.
    """
    names = Names(model)
    table = next((table for table in heads(model) if str(table.codes.name).startswith(f"{head}_Q")), None)
    nodes = list(lookups(model, embedding)) if table is not None else []
    for node in nodes:
        assert table is not None
        width = sides(model.graph.initializers[embedding].const_value.shape)[1]  # type: ignore[union-attr]
        flat = ir.node("Reshape", [table.codes, constant(node, [table.rows, -1], names, "flat")])
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK, "bits": table.bits}
        inputs = [flat.outputs[0], node.inputs[1], table.scales, *([] if table.zeros is None else [table.zeros])]
        made = [flat, ir.node(LOOKUP, inputs, attributes, domain=MICROSOFT)]
        if width != table.blocks * table.block:
            ends = [constant(node, [end], names, "end") for end in (0, width, -1)]
            made.append(ir.node("Slice", [made[-1].outputs[0], *ends]))
        replace(node, made, names)
    return str(table.codes.name) if table is not None and nodes else ""


def read_columns(model: ir.Model, embedding: str, head: str) -> str:
    """Make the lookups of ``embedding`` read columns of the int8 matrix [H, V] that MatMulInteger reads.

    Return the name of the matrix; empty without a lookup with ids of known rank.
    """
    names = Names(model)
    stored = model.graph.initializers
    parts = [stored.get(f"{head}_{part}") for part in ("quantized", "scale", "zero_point")]
    nodes = list(lookups(model, embedding)) if None not in parts else []
    codes, scale, zero = parts
    for node in nodes:
        ids = node.inputs[1]
        if ids is None or ids.shape is None:
            return ""
        rank = len(ids.shape)
        made = [ir.node("Gather", [codes, ids], {"axis": 1})]
        made.append(ir.node("Transpose", [made[-1].outputs[0]], {"perm": [*range(1, rank + 1), 0]}))
        made.append(ir.node("DequantizeLinear", [made[-1].outputs[0], scale, zero]))
        replace(node, made, names)
    return str(codes.name) if codes is not None and nodes else ""
