"""List the kinds of nodes that the pass knows. The last one claims every other node."""

from __future__ import annotations

from tieconv.onnx.share.patterns.any_node import AnyNode
from tieconv.onnx.share.patterns.gather import Lookup
from tieconv.onnx.share.patterns.gemm import Switched
from tieconv.onnx.share.patterns.head import MatMulHead
from tieconv.onnx.share.patterns.interface import Pattern
from tieconv.onnx.share.uses import Use

PATTERNS: tuple[Pattern, ...] = (Lookup(), MatMulHead(), Switched(), AnyNode())


def pattern_of(use: Use) -> Pattern:
    """Return the first pattern that claims the use."""
    return next(pattern for pattern in PATTERNS if pattern.claims(use))
