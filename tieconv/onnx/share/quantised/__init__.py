"""Store a matrix that is quantised in blocks once: an embedding and a head with the same codes become one."""

from __future__ import annotations

from tieconv.onnx.share.quantised.pass_ import quantised_pairs, share_quantised

__all__ = ["quantised_pairs", "share_quantised"]
