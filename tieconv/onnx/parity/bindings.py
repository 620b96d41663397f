"""Find the role of each input from its name, type and axes, and the output that feeds each cache input."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity.graph_file import BLOCKS, CAUSAL, DTYPES, EMBEDS, Graph, Value
from tieconv.reference import Batch
from tieconv.text import shown


class Role(StrEnum):
    """The role of an input."""

    IDS = "input_ids"
    MASK = "attention_mask"
    POSITIONS = "position_ids"
    TYPES = "token_type_ids"
    DECODER_IDS = "decoder_input_ids"
    DECODER_MASK = "decoder_attention_mask"
    EMBEDS = "inputs_embeds"
    BLOCKS = "token types of past and sequence"
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
    cannot be fed. ``causal`` is the token type of a token that attends only to earlier ones. ``features`` is the input
    of an encoder that reads images or sound in place of token ids.
    """

    kind: Kind
    inputs: dict[Role, Value]
    caches: tuple[Cache, ...]
    windows: tuple[Value, ...]
    logits: str
    padding: Padding = Padding.FRONT
    notes: tuple[str, ...] = ()
    switches: tuple[Value, ...] = ()
    causal: int = 0
    features: Value | None = None

    @property
    def axes(self) -> int:
        """The numbers of a position: 3 with M-RoPE."""
        value = self.inputs.get(Role.POSITIONS)
        return 3 if value is not None and len(value.shape) == 3 else 1

    @property
    def width(self) -> int:
        """The elements of a row of `inputs_embeds`; 0 for a graph of token ids."""
        value = self.inputs.get(Role.EMBEDS)
        side = value.shape[-1] if value is not None and value.shape else 0
        return side if isinstance(side, int) else 0


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
    EMBEDS: (
        "a decoder without its embedding",
        "put the graph of its embedding beside it, with the name embed_tokens.onnx",
    ),
}
"""Inputs that another graph computes: in optimum's decoders, and in graphs behind an `embed_tokens.onnx`."""
_TOKENS = (Role.IDS, Role.MASK, Role.POSITIONS, Role.TYPES, Role.DECODER_IDS, Role.DECODER_MASK)


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
        role = _role(graph, value)
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
    causal = _causal(graph)
    return Bindings(kind, inputs, tuple(caches), tuple(windows), "logits", padding, notes, tuple(switches), causal)


def _role(graph: Graph, value: Value) -> Role | None:
    """Return the role of an input that is not a cache."""
    if graph.embedding is not None and value.name == EMBEDS and value.dtype in DTYPES:
        return Role.EMBEDS
    if value.dtype not in ("INT64", "INT32"):
        return None
    if graph.embedding is not None and value.name in BLOCKS:
        return Role.BLOCKS
    return next((role for role in _TOKENS if value.name == role), None)


def _causal(graph: Graph) -> int:
    text = graph.model.metadata_props.get(CAUSAL, "") if graph.model is not None else ""
    return int(text) if text.isdecimal() else 0


_EXPORT = "export one graph with input_ids, attention_mask, position_ids and the cache: docs/parity.md"


def refuse_halves(graph: Graph) -> None:
    """Raise `NotRunError` for a graph with an input that another graph computes."""
    for value in graph.inputs:
        if value.name in _HALVES and not (value.name == EMBEDS and graph.embedding is not None):
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


# Feed inputs that control how a graph runs.
#
# These are the branch of a merged decoder, the number of logits to keep, and the cache positions. Sources:
# `use_cache_branch` of optimum's `merge_decoders`; `num_logits_to_keep` and `cache_position` of the forward passes of
# transformers, in which 0 logits mean all.


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


# Support the cache of `GroupQueryAttention`, the operator that onnxruntime-genai's graphs use.
#
# The operator takes no mask, but the number of tokens of each row. So padding must follow the tokens, and several
# tokens after a past need a batch of one row. A windowed cache has its full capacity from the start.
#
# Source: the operator's schema in ONNX Runtime, domain com.microsoft.


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
