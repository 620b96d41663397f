"""Keep the rewriter of onnxscript from work that cannot succeed, which grows with the square of a model's layers.

For a pattern with several outputs its matcher lists all nodes for each node. It then tries all their combinations.
The first node of a combination is always the same. If that one does not match, none of them can.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

_MATCHER = "onnxscript.rewriter._matcher"


@contextlib.contextmanager
def quick_rewrites() -> Iterator[None]:
    """Ask of each node first whether it can be the first output of the pattern. The rewrites are the same.

    Does nothing if this version of onnxscript has no such matcher.
    """
    try:
        matcher = importlib.import_module(_MATCHER).SimplePatternMatcher
        original = matcher.match
        inspect.signature(matcher._init_match).bind(None, 0)
        inspect.signature(matcher._match_node).bind(None, None, None)
    except (ImportError, AttributeError, TypeError):
        yield
        return

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if not self.pattern.has_single_output_node:
            self._tracer = options.get("tracer")
            self._graph = getattr(graph, "graph", graph)  # a function has a graph
            self._init_match(0)
            if not self._match_node(self.pattern.output_nodes[0], node) and not self._match:
                return self._match
        return original(self, model, graph, node, **options)

    matcher.match = match
    try:
        yield
    finally:
        matcher.match = original
