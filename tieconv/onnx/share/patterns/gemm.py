"""Handle `Gemm` and `FusedMatMul`, which have an attribute for the transposed matrix."""

from __future__ import annotations

import onnx_ir as ir

from tieconv.onnx.share.patterns.head import MICROSOFT
from tieconv.onnx.share.patterns.interface import Target, dtype_of
from tieconv.onnx.share.uses import Use, integer, is_standard


class Switched:
    """A node with an attribute that makes it read the matrix transposed."""

    def claims(self, use: Use) -> bool:
        return use.node is not None and (is_standard(use.node, "Gemm") or _is_fused(use.node))

    def refuses(self, use: Use, target: Target) -> str:
        node = use.node
        assert node is not None
        if dtype_of(use, target.dtype) != target.dtype:
            return f"a {node.op_type} computes with it in {dtype_of(use, target.dtype).name}"
        if not use.flipped:
            return ""
        if use.index > 1 or (_is_fused(node) and (use.index != 1 or integer(node, "transBatchB", 0))):
            return f"a {node.op_type} reads it as another input than the right operand"
        return ""

    def rewrite(self, use: Use, target: Target) -> None:
        node = use.node
        assert node is not None
        node.replace_input_with(use.index, target.value)
        if use.flipped:
            name = "transA" if use.index == 0 else "transB"
            node.attributes[name] = ir.AttrInt64(name, 1 - integer(node, name, 0))


def _is_fused(node: ir.Node) -> bool:
    return node.domain == MICROSOFT and node.op_type == "FusedMatMul"
