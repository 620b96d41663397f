"""Trace the attention of image tokens to each other, which a model builds only for its first tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tieconv.reference.packages import need

_NAME = "is_initialized"


@contextmanager
def first_pass(active: bool) -> Iterator[None]:
    """Make a cache look empty to the model's code while ``active``, although it holds tokens.

    Some models (PaliGemma) read token types only if ``past_key_values.is_initialized`` is false. The graph gets types
    for past and new tokens. A token of a closed block then attends to no later token, as in a step of the model.
    """
    cache = need("transformers", "onnx,torch", "exporting").Cache
    before = cache.__dict__.get(_NAME)
    if not active or before is None:
        yield
        return
    setattr(cache, _NAME, property(lambda self: False))
    try:
        yield
    finally:
        setattr(cache, _NAME, before)
