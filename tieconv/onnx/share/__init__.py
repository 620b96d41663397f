"""Keep one copy of each matrix: find copies by content, choose one by its uses, and rewrite the nodes."""

from __future__ import annotations

from tieconv.onnx.share.share_pass import SharePass

__all__ = ["SharePass"]
