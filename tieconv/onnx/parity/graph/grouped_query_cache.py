"""Support the cache of `GroupQueryAttention`, the operator that onnxruntime-genai's graphs use.

The operator takes no mask, but the number of tokens of each row. So padding must follow the tokens, and several tokens
after a past need a batch of one row. A windowed cache has its full capacity from the start.

Source: the operator's schema in ONNX Runtime, domain com.microsoft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from tieconv.onnx.parity.graph.file import Graph
from tieconv.reference import Batch

_PASTS = (3, 4)
"""The operator's inputs past_key and past_value."""


def grouped_caches(graph: Graph) -> dict[str, int]:
    """Return the names of such caches among the graph's inputs, with their positions before the first token."""
    if graph.model is None:
        return {}
    nodes = [node for node in graph.model.graph.all_nodes() if node.op_type == "GroupQueryAttention"]
    return {
        value.name: _capacity(node.attributes)
        for node in nodes
        for value in (node.inputs[index] for index in _PASTS if index < len(node.inputs))
        if value is not None and value.name
    }


def _capacity(attributes: Mapping[str, object]) -> int:
    """Return the window of a windowed cache: the smallest capacity, and on CUDA the only one."""
    return max(_whole(attributes, "local_window_size"), 0) if _whole(attributes, "sliding_window_cache") == 1 else 0


def _whole(attributes: Mapping[str, object], name: str) -> int:
    value = getattr(attributes.get(name), "value", 0)
    return value if isinstance(value, int) else 0


def behind(batch: Batch, start: int) -> Batch:
    """Return the batch with each row's padding after its tokens.

    All padding is before ``start``, or ``start`` is 0.
    """
    order = _tokens_first(batch.mask)
    mask = batch.mask.gather(1, order)
    if start:
        return replace(batch, mask=mask)
    positions = None if batch.given_positions is None else batch.given_positions.gather(1, order)
    types = None if batch.types is None else batch.types.gather(1, order)
    return replace(batch, ids=batch.ids.gather(1, order), mask=mask, types=types, given_positions=positions)


def in_front(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return logits of such a batch (batch × sequence × vocabulary) in the order of ``mask``, with padding first."""
    rows = torch.arange(len(logits))[:, None]
    return logits[rows, _tokens_first(mask).argsort(1)]


def _tokens_first(mask: torch.Tensor) -> torch.Tensor:
    return mask.argsort(dim=1, descending=True, stable=True)
