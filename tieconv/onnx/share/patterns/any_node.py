"""Handle any other node: it can read another copy of the same bytes, and nothing else."""

from __future__ import annotations

from tieconv.onnx.share.patterns.interface import Target, dtype_of
from tieconv.onnx.share.uses import Use, describe


class AnyNode:
    """A node of unknown meaning."""

    def claims(self, use: Use) -> bool:
        return True

    def refuses(self, use: Use, target: Target) -> str:
        if use.node is None:
            return "it is an output of the graph"
        if use.flipped or dtype_of(use, target.dtype) != target.dtype:
            return f"{describe(use.node)} reads it in its own form"
        return ""

    def rewrite(self, use: Use, target: Target) -> None:
        assert use.node is not None
        use.node.replace_input_with(use.index, target.value)
