"""Find the role of each input from its name, type and axes, and the output that feeds each cache input."""

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
    """The role of an input."""

    IDS = "input_ids"
    MASK = "attention_mask"
    POSITIONS = "position_ids"
    TYPES = "token_type_ids"
    DECODER_IDS = "decoder_input_ids"
    DECODER_MASK = "decoder_attention_mask"
    PAST = "past"
    WINDOW = "sliding_window"


class Kind(StrEnum):
    """What a graph computes."""

    CACHED = "decoder with cache"
    PLAIN = "decoder without cache"
    MASKED = "masked language model"
    SEQ2SEQ = "encoder-decoder without cache"
    PAIR = "encoder-decoder with cache"

    @property
    def encodes(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self in (Kind.SEQ2SEQ, Kind.PAIR)

    @property
    def steps(self) -> bool:
        """Whether the model takes a cache."""
        return self in (Kind.CACHED, Kind.PAIR)


class Padding(StrEnum):
    """Where a graph takes the padding of a row.

    All but the first take several tokens after a past only in a batch of one row.
    """

    FRONT = "left padding"
    BEHIND = "right padding"
    NONE = "no padding"


@record
class Cache:
    """One key or value tensor: the input for the past, and the output that holds past and present.

    ``capacity`` is the number of positions before the first token. It is 0 unless the cache holds a window.
    """

    past: Value
    present: str
    capacity: int = 0


@record
class Bindings:
    """The graph's inputs by role; ``logits`` is the name of that output.

    ``switches`` are the inputs that control how the graph runs. ``notes`` list what the graph leaves open, or what it
    cannot be fed.
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
        "give the directory with its encoder: tieconv parity DIR MODEL",
    ),
    "inputs_embeds": ("a decoder without its embedding", "export it with its embedding: tieconv export MODEL -o OUT"),
}
"""Inputs that another graph computes: in optimum's decoders, and in graphs behind an `embed_tokens.onnx`."""
_TOKENS = (Role.IDS, Role.MASK, Role.POSITIONS, Role.TYPES, Role.DECODER_IDS, Role.DECODER_MASK)
_AXES = {
    Role.IDS: ("batch", "sequence"),
    Role.MASK: ("batch", "past plus sequence"),
    Role.POSITIONS: ("batch", "sequence"),
    Role.TYPES: ("batch", "sequence"),
    Role.DECODER_IDS: ("batch", "decoder sequence"),
    Role.DECODER_MASK: ("batch", "decoder sequence"),
    Role.PAST: ("batch", "", "past", ""),
}


def bind(graph: Graph, *, masked: bool, width: int = 0) -> Bindings:
    """Return the roles of the inputs. ``masked``: the model predicts masked tokens.

    ``width`` is that of the model's heads, for graphs that leave it open. Raises `UnreadableError` for an unknown
    input, and for a graph without token ids or logits. Raises `NotRunError` for a graph that is only part of a model,
    such as the decoder of a pair.
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
            raise unknown_input(graph, value)
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
    """Raise `NotRunError` for a graph with an input that another graph computes."""
    for value in graph.inputs:
        if value.name in _HALVES:
            kind, hint = _HALVES[value.name]
            raise NotRunError(
                f"{shown(graph.path)} is {kind}: another graph computes its {value.name}, but parity measures "
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
    """Return the cache value with the model's width if its own width is open."""
    open_ = width > 0 and not isinstance(value.shape[3], int)
    return replace(value, shape=(*value.shape[:3], width)) if open_ else value


def _padding(grouped: Mapping[str, int]) -> Padding:
    if not grouped:
        return Padding.FRONT
    return Padding.NONE if any(grouped.values()) else Padding.BEHIND


def _notes(padding: Padding, opened: int, width: int, capacity: int) -> Iterator[str]:
    if opened:
        sentence = f"{opened} caches leave" if opened > 1 else "one cache leaves"
        yield f"{sentence} the width open: parity fed the config's width, {width}"
    if padding is not Padding.FRONT:
        sentence = (
            "parity padded on the right, never on the left" if padding is Padding.BEHIND else "parity fed no padding"
        )
        yield f"GroupQueryAttention takes no mask: {sentence}; several tokens after a past were one sequence at a time"
    if capacity:
        yield f"caches with a window had {capacity} positions from the start"


def _cache_layer(name: str) -> tuple[int, str] | None:
    """Return layer and part from a cache tensor's name."""
    match = _CACHE.fullmatch(name)
    return (int(match["layer"]), match["part"]) if match else None


def unknown_input(graph: Graph, value: Value) -> UnreadableError:
    """Return the error of a graph with an input that parity cannot feed."""
    type_and_shape = f"{value.dtype.lower()}{list(value.shape)}"
    why = "has no matching output" if _cache_layer(value.name) else "is unknown to parity"
    message = f"{shown(graph.path)}: the input {shown(value.name)} ({shown(type_and_shape)}) {why}"
    return UnreadableError(message, _EXPORT, "onnx.inputs")


def faults(bindings: Bindings) -> Iterator[str]:
    """Yield what prevents running the graph at every shape: fixed axes, or no way to mask padding."""
    for role, value in bindings.inputs.items():
        yield from _frozen(value, _AXES[role])
    for cache in bindings.caches:
        yield from _frozen(cache.past, _AXES[Role.PAST])
    for value in bindings.switches:
        yield from _frozen(value, ("sequence",)) if value.name == PLACES else ()
    if Role.MASK not in bindings.inputs:
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
