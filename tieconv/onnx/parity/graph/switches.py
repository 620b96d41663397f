"""Feed inputs that control how a graph runs.

These are the branch of a merged decoder, the number of logits to keep, and the cache positions. Sources:
`use_cache_branch` of optimum's `merge_decoders`; `num_logits_to_keep` and `cache_position` of the forward passes of
transformers, in which 0 logits mean all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from tieconv.onnx.parity.graph.file import Value

BRANCH, PLACES = "use_cache_branch", "cache_position"
KEEP = ("num_logits_to_keep", "logits_to_keep")
_WHOLE = ("INT64", "INT32")


def is_switch(value: Value) -> bool:
    """Return whether name, type and axes are those of such an input."""
    if value.name == PLACES:
        return value.dtype in _WHOLE and len(value.shape) == 1
    single = len(value.shape) == 0 or (len(value.shape) == 1 and value.shape[0] in (1, None))
    return single and (value.dtype == "BOOL" if value.name == BRANCH else value.name in KEEP and value.dtype in _WHOLE)


def switched(value: Value, start: int, end: int) -> np.ndarray:
    """Return the value of the input for the tokens ``start`` to ``end``; earlier tokens are in the cache."""
    if value.name == BRANCH:
        return np.full((1,) * len(value.shape), start > 0)
    dtype = np.int32 if value.dtype == "INT32" else np.int64
    if value.name == PLACES:
        return np.arange(start, end, dtype=dtype)
    return np.zeros((1,) * len(value.shape), dtype)


def switch_notes(names: Collection[str]) -> Iterator[str]:
    """Yield how these inputs were fed, for the report."""
    if BRANCH in names:
        yield f"{BRANCH} was false for the first tokens of a sequence (empty past), and true after them"
    for name in KEEP:
        if name in names:
            yield f"{name} was always 0, which keeps the logits of every position"
    if PLACES in names:
        yield f"{PLACES} counted all tokens from the first in the cache, including padding"
