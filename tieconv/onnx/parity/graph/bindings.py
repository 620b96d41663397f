"""What each input of a graph is for, told from its name, type and axes; and which output feeds which cache input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity.graph.file import DTYPES, Graph, Value
from tieconv.onnx.parity.graph.grouped_query_cache import grouped_caches
from tieconv.onnx.parity.graph.switches import BRANCH, PLACES, is_switch, switch_notes
from tieconv.text import shown


class Role(StrEnum):
    """What an input is for."""

    IDS = "input_ids"
    MASK = "attention_mask"
    POSITIONS = "position_ids"
    TYPES = "token_type_ids"
    DECODER_IDS = "decoder_input_ids"
    PAST = "past"
    WINDOW = "sliding_window"


class Kind(StrEnum):
    """What a graph computes."""

    CACHED = "decoder with cache"
    PLAIN = "decoder without cache"
    MASKED = "masked language model"
    SEQ2SEQ = "encoder-decoder without cache"


class Padding(StrEnum):
    """Where a graph takes the padding of a row; all but the first take several tokens after a past in one row alone."""

    FRONT = "left padding"
    BEHIND = "right padding"
    NONE = "no padding"


@record
class Cache:
    """One key or value tensor: the input for the past, and the output that holds past and present.

    ``capacity`` positions are there before the first token; they are none but where the cache holds a window.
    """

    past: Value
    present: str
    capacity: int = 0


@record
class Bindings:
    """The graph's inputs by role; ``logits`` is the name of that output.

    ``switches`` are the inputs that say how it runs; ``notes`` say what it left open or cannot be fed.
    """

    kind: Kind
    inputs: dict[Role, Value]
    caches: tuple[Cache, ...]
    windows: tuple[Value, ...]
    logits: str
    padding: Padding = Padding.FRONT
    notes: tuple[str, ...] = ()
    switches: tuple[Value, ...] = ()


# transformers' exporters, optimum and onnxruntime-genai: input.past_key_values.layers.0.keys, past_key_values.0.key
_CACHE = re.compile(
    r"(?:input\.|output\.)?(?P<side>past_key_values|past_key_value|past|present_key_values|present)"
    r"\.(?:layers\.)?(?P<layer>\d+)\.(?:(?:decoder|self)\.)?(?P<part>key|value)s?"
)
_WINDOW = re.compile(r".*\._sliding_window_tensor")
_HALVES = {
    "encoder_hidden_states": (
        "the decoder of a pair",
        "export the encoder-decoder as one graph: tieconv export MODEL -o OUT",
    ),
    "inputs_embeds": ("a decoder without its embedding", "export it with its embedding: tieconv export MODEL -o OUT"),
}
"""Inputs that another graph computes: optimum's decoders, merged or not; graphs behind an `embed_tokens.onnx`."""
_TOKENS = (Role.IDS, Role.MASK, Role.POSITIONS, Role.TYPES, Role.DECODER_IDS)
_AXES = {
    Role.IDS: ("batch", "sequence"),
    Role.MASK: ("batch", "past plus sequence"),
    Role.POSITIONS: ("batch", "sequence"),
    Role.TYPES: ("batch", "sequence"),
    Role.DECODER_IDS: ("batch", "decoder sequence"),
    Role.PAST: ("batch", "", "past", ""),
}


def bind(graph: Graph, *, masked: bool, width: int = 0) -> Bindings:
    """The roles of the inputs; ``masked`` is whether the model predicts masked tokens.

    ``width`` is that of the model's heads, for graphs that leave it open.

    Raises `UnreadableError` for an input that no rule knows, and for a graph without token ids or logits;
    `NotRunError` for the decoder of a pair and for a graph behind the embedding, which alone are no model.
    """
    refuse_halves(graph)
    presents = {_cache_layer(value.name): value.name for value in graph.outputs if _cache_layer(value.name)}
    inputs: dict[Role, Value] = {}
    caches, windows, switches = [], [], []
    grouped, opened = grouped_caches(graph), 0
    for value in graph.inputs:
        layer = _cache_layer(value.name)
        role = next((role for role in _TOKENS if value.name == role and value.dtype in ("INT64", "INT32")), None)
        if role is not None:
            inputs[role] = value
        elif layer and layer in presents and value.dtype in DTYPES and len(value.shape) == 4:
            opened += width > 0 and not isinstance(value.shape[3], int)
            caches.append(Cache(_closed(value, width), presents[layer], grouped.get(value.name, 0)))
        elif _WINDOW.fullmatch(value.name) and value.dtype == "INT64":
            windows.append(value)
        elif is_switch(value) and (value.name != BRANCH or presents):
            switches.append(value)
        else:
            raise _unknown(graph, value)
    if Role.IDS not in inputs or graph.output("logits") is None:
        lacking = "output logits" if Role.IDS in inputs else "input input_ids"
        raise UnreadableError(f"{shown(graph.path)} has no {lacking}", _EXPORT, "onnx.inputs")
    padding = _padding(grouped)
    fed = switch_notes([value.name for value in switches])
    notes = (*_notes(padding, opened, width, max(grouped.values(), default=0)), *fed)
    kind = _kind(inputs, bool(caches), masked)
    return Bindings(kind, inputs, tuple(caches), tuple(windows), "logits", padding, notes, tuple(switches))


_EXPORT = "export one graph with input_ids, attention_mask, position_ids and the cache: docs/parity.md"


def refuse_halves(graph: Graph) -> None:
    """Raise `NotRunError` for a graph whose input another graph computes."""
    for value in graph.inputs:
        if value.name in _HALVES:
            kind, hint = _HALVES[value.name]
            raise NotRunError(
                f"{shown(graph.path)} is {kind}: its {value.name} come from another graph, and parity measures "
                "one graph from token ids to logits",
                hint,
                "onnx.half",
            )


def _kind(inputs: dict[Role, Value], cached: bool, masked: bool) -> Kind:
    if Role.DECODER_IDS in inputs:
        return Kind.SEQ2SEQ
    if cached:
        return Kind.CACHED
    return Kind.MASKED if masked else Kind.PLAIN


def _closed(value: Value, width: int) -> Value:
    """The cache with the model's width where its own is open."""
    open_ = width > 0 and not isinstance(value.shape[3], int)
    return replace(value, shape=(*value.shape[:3], width)) if open_ else value


def _padding(grouped: Mapping[str, int]) -> Padding:
    if not grouped:
        return Padding.FRONT
    return Padding.NONE if any(grouped.values()) else Padding.BEHIND


def _notes(padding: Padding, opened: int, width: int, capacity: int) -> Iterator[str]:
    if opened:
        sentence = f"{opened} caches leave" if opened > 1 else "one cache leaves"
        yield f"{sentence} the width open: {width} was fed, as the config has it"
    if padding is not Padding.FRONT:
        sentence = (
            "padding stood behind the tokens, never in front" if padding is Padding.BEHIND else "no padding was fed"
        )
        yield f"GroupQueryAttention takes no mask: {sentence}; several tokens after a past were one sequence at a time"
    if capacity:
        yield f"caches that hold a window had {capacity} positions from the start"


def _cache_layer(name: str) -> tuple[int, str] | None:
    """Layer and part of a cache tensor's name."""
    match = _CACHE.fullmatch(name)
    return (int(match["layer"]), match["part"]) if match else None


def _unknown(graph: Graph, value: Value) -> UnreadableError:
    type_and_shape = f"{value.dtype.lower()}{list(value.shape)}"
    why = "has no output that continues it" if _cache_layer(value.name) else "is none that parity can feed"
    message = f"{shown(graph.path)}: the input {shown(value.name)} ({shown(type_and_shape)}) {why}"
    return UnreadableError(message, _EXPORT, "onnx.inputs")


def faults(bindings: Bindings) -> Iterator[str]:
    """What stands against running the graph at every shape: fixed axes, and no way to mask padding."""
    for role, value in bindings.inputs.items():
        yield from _frozen(value, _AXES[role])
    for cache in bindings.caches:
        yield from _frozen(cache.past, _AXES[Role.PAST])
    for value in bindings.switches:
        yield from _frozen(value, ("sequence",)) if value.name == PLACES else ()
    if Role.MASK not in bindings.inputs:
        yield "the graph has no input attention_mask: padded batches cannot be run"


def _frozen(value: Value, axes: tuple[str, ...]) -> Iterator[str]:
    if len(value.shape) != len(axes):
        yield f"the input {shown(value.name)} has {len(value.shape)} axes instead of {len(axes)}"
        return
    for index, (side, axis) in enumerate(zip(value.shape, axes, strict=True)):
        if axis and isinstance(side, int):
            yield f"the {axis} axis ({index}) of the input {shown(value.name)} is fixed at {side}"
        if not axis and not isinstance(side, int):
            yield f"the axis {index} of the input {shown(value.name)} (heads or width of the cache) has no fixed length"
