"""One copy of each matrix: found by content, chosen by use, rewritten pattern by pattern."""

from __future__ import annotations

from tieconv.onnx.share.share_pass import SharePass

__all__ = ["SharePass"]
