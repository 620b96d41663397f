"""Inputs that say how a graph runs and not on what: the branch of a merged decoder, the logits to keep, the places.

Sources: `use_cache_branch` of optimum's `merge_decoders`; `num_logits_to_keep` and `cache_position` of the forward
passes of transformers, 0 logits being all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from tieconv.onnx.parity.graph.file import Value

BRANCH, PLACES = "use_cache_branch", "cache_position"
KEEP = ("num_logits_to_keep", "logits_to_keep")
_WHOLE = ("INT64", "INT32")


def is_switch(value: Value) -> bool:
    """Whether the input is one of these, in name, type and axes."""
    if value.name == PLACES:
        return value.dtype in _WHOLE and len(value.shape) == 1
    single = len(value.shape) == 0 or (len(value.shape) == 1 and value.shape[0] in (1, None))
    return single and (value.dtype == "BOOL" if value.name == BRANCH else value.name in KEEP and value.dtype in _WHOLE)


def switched(value: Value, start: int, end: int) -> np.ndarray:
    """What the input is fed where the tokens ``start`` to ``end`` are run, those before them being in the cache."""
    if value.name == BRANCH:
        return np.full((1,) * len(value.shape), start > 0)
    dtype = np.int32 if value.dtype == "INT32" else np.int64
    if value.name == PLACES:
        return np.arange(start, end, dtype=dtype)
    return np.zeros((1,) * len(value.shape), dtype)


def switch_notes(names: Collection[str]) -> Iterator[str]:
    """How they were fed, for the report."""
    if BRANCH in names:
        yield f"{BRANCH} was false for a sequence's first tokens, over an empty past, and true for those after them"
    for name in KEEP:
        if name in names:
            yield f"{name} was 0, which keeps the logits of every position; no other number was fed"
    if PLACES in names:
        yield f"{PLACES} counted the tokens of the cache and after, padding too"
