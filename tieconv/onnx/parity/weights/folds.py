"""Compute what exporters fold into a weight, in exact arithmetic that can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tieconv.checkpoint.value_type import record


@record
class Fold:
    """A weight as the graph may hold it. ``apply`` maps the weight in the graph's precision to what is stored."""

    name: str
    apply: Callable[[Any], Any]


def folds(config: Any) -> Iterator[Fold]:
    """Yield the folds that the config of the model implies, the unchanged weight first.

    ``rounded`` is a weight of a 16-bit graph that was rounded and then stored wider. ``one plus`` is Gemma's norm,
    computed in float32. The scales are those of embeddings and attention scores.
    """
    yield Fold("", lambda weight: weight)
    yield Fold("rounded", lambda weight: weight)
    yield Fold("one plus", lambda weight: weight.float() + 1.0)
    for factor in sorted(set(factors(config))):
        yield Fold(f"times {factor:.6g}", partial(_times, factor=factor))


def _times(weight: Any, factor: float) -> Any:
    """Return the product as a model computes it, with the factor rounded to the weight's precision."""
    return weight * weight.new_tensor(factor)


def head_width(config: Any) -> int:
    """Return the elements of one attention head, or 0 if the config does not say."""
    hidden = _number(config, "hidden_size") or _number(config, "d_model")
    heads = _number(config, "num_attention_heads")
    return int(_number(config, "head_dim") or (hidden // heads if heads else 0))


def factors(config: Any) -> Iterator[float]:
    """Yield the scales of embeddings and attention scores that the config implies."""
    hidden = _number(config, "hidden_size") or _number(config, "d_model")
    if hidden:
        yield from (hidden**0.5, hidden**-0.5)
        width = head_width(config)
        if width:
            yield from (width**-0.5, width**-0.25)
    scalar = _number(config, "query_pre_attn_scalar")
    if scalar:
        yield scalar**-0.5


def _number(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
