"""Check that every axis of a graph's inputs that must be dynamic is dynamic."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.onnx.parity.graph.bindings import Bindings, Role
from tieconv.onnx.parity.graph.file import Value
from tieconv.onnx.parity.graph.switches import PLACES
from tieconv.text import shown

_AXES = {
    Role.IDS: ("batch", "sequence"),
    Role.MASK: ("batch", "past plus sequence"),
    Role.POSITIONS: ("batch", "sequence"),
    Role.TYPES: ("batch", "sequence"),
    Role.DECODER_IDS: ("batch", "decoder sequence"),
    Role.DECODER_MASK: ("batch", "decoder sequence"),
    Role.PAST: ("batch", "", "past", ""),
    Role.EMBEDS: ("batch", "sequence", ""),
    Role.BLOCKS: ("batch", "past plus sequence"),
}
_THREE_AXES = ("", "batch", "sequence")
"""Of positions with three numbers (M-RoPE)."""


def faults(bindings: Bindings) -> Iterator[str]:
    """Yield what prevents running the graph at every shape: fixed axes, or no way to mask padding."""
    for role, value in bindings.inputs.items():
        three = role is Role.POSITIONS and bindings.axes == 3
        yield from _frozen(value, _THREE_AXES if three else _AXES[role])
    for cache in bindings.caches:
        yield from _frozen(cache.past, _AXES[Role.PAST])
    for value in bindings.switches:
        yield from _frozen(value, ("sequence",)) if value.name == PLACES else ()
    if bindings.features is not None and isinstance(bindings.features.shape[0], int):
        fixed = bindings.features.shape[0]
        yield f"the batch axis (0) of the input {shown(bindings.features.name)} is fixed at {fixed}"
    if Role.MASK not in bindings.inputs and bindings.features is None:
        yield "the graph has no input attention_mask, so it cannot run padded batches"


def _frozen(value: Value, axes: tuple[str, ...]) -> Iterator[str]:
    if len(value.shape) != len(axes):
        yield f"the input {shown(value.name)} has {len(value.shape)} axes instead of {len(axes)}"
        return
    for index, (side, axis) in enumerate(zip(value.shape, axes, strict=True)):
        if axis and isinstance(side, int):
            yield f"the {axis} axis ({index}) of the input {shown(value.name)} is fixed at {side}"
        if not axis and not isinstance(side, int):
            yield f"the axis {index} of the input {shown(value.name)} (heads or width of the cache) has no fixed length"
