"""Find the role of each input of a model's graphs by its name, type and axes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity.graph_file import BLOCKS, CAUSAL, DTYPES, EMBEDS, Graph, Initializer, Value, read_graph
from tieconv.reference.model import Batch, architecture, planned_encoder_input
from tieconv.reference.packages import need
from tieconv.text import MODEL, OUT, Hint, call, shown


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

    @property
    def own_shape(self) -> tuple[int, int] | None:
        """Rows and tokens of a graph without a cache. An open axis gets two rows or 16 tokens."""
        ids = self.inputs.get(Role.IDS)
        if self.kind not in (Kind.PLAIN, Kind.MASKED) or ids is None or len(ids.shape) != 2:
            return None
        rows, tokens = (
            side if isinstance(side, int) else open_ for side, open_ in zip(ids.shape, (2, 16), strict=True)
        )
        return rows, tokens


# input.cache.layers.0.keys of transformers 5.24, input.past_key_values.layers.0.keys of its earlier releases, and
# past_key_values.0.key of optimum and onnxruntime-genai
_CACHE = re.compile(
    r"(?:input\.|output\.)?(?:cache|past_key_values|past_key_value|past|present_key_values|present)"
    r"\.(?:layers\.)?(?P<layer>\d+)\.(?:(?:decoder|self)\.)?(?P<part>key|value)s?"
)
_WINDOW = re.compile(r".*\._sliding_window_tensor")
_HALVES = {
    "encoder_hidden_states": (
        "the decoder of a pair",
        Hint("give the directory with its encoder: ", call("parity", Hint("DIR"), MODEL)),
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
            open_ = width > 0 and not isinstance(value.shape[3], int)
            closed = replace(value, shape=(*value.shape[:3], width)) if open_ else value
            opened += open_
            caches.append(Cache(closed, presents[layer], grouped.get(value.name, 0)))
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
    kind = Kind.CACHED if caches else Kind.MASKED if masked else Kind.PLAIN
    if Role.DECODER_IDS in inputs:
        kind = Kind.SEQ2SEQ
    text = graph.model.metadata_props.get(CAUSAL, "") if graph.model is not None else ""
    causal = int(text) if text.isdecimal() else 0
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


_EXPORT = "export one graph with input_ids, attention_mask, position_ids and the cache: docs/parity.md"


def refuse_halves(graph: Graph) -> None:
    """Raise `NotRunError` for a graph with an input that another graph computes."""
    for value in graph.inputs:
        if value.name in _HALVES and not (value.name == EMBEDS and graph.embedding is not None):
            kind, hint = _HALVES[value.name]
            problem = f"{shown(graph.path)} is {kind}: another graph computes its {value.name}"
            raise NotRunError(f"{problem}, but parity measures one graph from token ids to logits", hint, "onnx.half")


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
    capacities: dict[str, int] = {}
    for node in graph.model.graph.all_nodes() if graph.model is not None else ():
        if node.op_type == "GroupQueryAttention":
            windowed = _whole(node.attributes, "sliding_window_cache") == 1
            # The window is the smallest capacity of a windowed cache, and on CUDA the only one.
            capacity = max(_whole(node.attributes, "local_window_size"), 0) if windowed else 0
            pasts = (node.inputs[index] for index in _PASTS if index < len(node.inputs))
            capacities.update((value.name, capacity) for value in pasts if value is not None and value.name)
    return capacities


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


# Find the roles of the inputs and outputs of an encoder and of its decoders.

_HIDDEN, _STATES, _ENCODER_MASK = "encoder_hidden_states", "last_hidden_state", "encoder_attention_mask"
_PAIR_CACHE = re.compile(
    r"(?:past_key_values|past_key_value|past|present_key_values|present)"
    r"\.(?P<layer>\d+)\.(?P<side>decoder|encoder)\.(?P<part>key|value)"
)

Key = tuple[int, str, str]
"""Layer, `decoder` (self-attention) or `encoder` (cross-attention), and `key` or `value`."""


@record
class Decoder:
    """A decoder's inputs by role, and the tensors of its caches. ``hidden`` and ``mask`` are those of the encoder."""

    graph: Graph
    ids: Value
    hidden: Value | None
    mask: Value | None
    switches: tuple[Value, ...]
    pasts: Mapping[Key, Value]
    presents: Mapping[Key, str]

    @property
    def bindings(self) -> Bindings:
        """The decoder alone, for the nodes that read its token ids."""
        caches = tuple(Cache(past, self.presents.get(key, "")) for key, past in self.pasts.items())
        inputs = {Role.IDS: self.ids} | ({Role.MASK: self.mask} if self.mask is not None else {})
        return Bindings(Kind.CACHED, inputs, caches, (), "logits", switches=self.switches)


@record
class Pair:
    """An encoder, the decoder for the first tokens, and the decoder for later steps. The two may be one graph.

    ``inputs`` are those of the encoder by role. ``states`` is the encoder's output. ``features`` is the input of an
    encoder that reads images or sound; it then has no other.
    """

    encoder: Graph
    inputs: Mapping[Role, Value]
    states: str
    first: Decoder
    step: Decoder
    features: Value | None = None

    @property
    def decoders(self) -> tuple[Decoder, ...]:
        """Each decoder once."""
        return (self.first,) if self.step is self.first else (self.first, self.step)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Each graph once."""
        return (self.encoder, *(decoder.graph for decoder in self.decoders))

    @property
    def bindings(self) -> Bindings:
        """The roles of the whole model's inputs."""
        decoder_ids = replace(self.first.ids, name=str(Role.DECODER_IDS))
        notes = tuple(switch_notes([value.name for value in self.first.switches]))
        inputs = {**self.inputs, Role.DECODER_IDS: decoder_ids}
        return Bindings(Kind.PAIR, inputs, (), (), "logits", notes=notes, features=self.features)

    @property
    def parts(self) -> Iterator[tuple[Graph, Bindings]]:
        """Each graph that reads token ids, with the roles of its inputs."""
        if self.features is None:
            yield self.encoder, Bindings(Kind.MASKED, dict(self.inputs), (), (), self.states)
        yield from ((decoder.graph, decoder.bindings) for decoder in self.decoders)


def read_pair(files: tuple[str, str, str]) -> Pair:
    """Read the graphs of `pair_files`.

    Raises `UnreadableError` for a graph that cannot be read, or that has unknown inputs.
    """
    encoder = read_graph(files[0])
    (value,) = encoder.inputs if len(encoder.inputs) == 1 else (None,)
    features = value if value is not None and value.dtype in DTYPES and len(value.shape) > 1 else None
    inputs: dict[Role, Value] = {}
    for value in encoder.inputs if features is None else ():
        if value.name not in (Role.IDS, Role.MASK):
            raise unknown_input(encoder, value)
        inputs[Role(value.name)] = value
    if encoder.output(_STATES) is None or (Role.IDS not in inputs and features is None):
        problem = f"{shown(encoder.path)} does not compute {_STATES} from input_ids"
        raise UnreadableError(problem, _EXPORT_PAIR, "onnx.inputs")
    first = _decoder(read_graph(files[1]))
    step = first if files[2] == files[1] else _decoder(read_graph(files[2]))
    # A step must get every cache from the first pass.
    own = {key for key in step.pasts if key[1] == "decoder"}
    lacking = sorted((set(step.pasts) - set(first.presents)) | (own - set(step.presents)))
    if lacking or not step.pasts:
        layer = ".".join(map(str, lacking[0])) if lacking else "any layer"
        problem = f"{shown(step.graph.path)}: no graph computes the cache of {shown(layer)}"
        raise UnreadableError(problem, _EXPORT_PAIR, "onnx.inputs")
    for decoder in (first, step):
        if features is not None and decoder.mask is not None:  # an encoder of features has no positions to mask
            raise unknown_input(decoder.graph, decoder.mask)
    return Pair(encoder, inputs, _STATES, first, step, features)


_EXPORT_PAIR = Hint("export it with ", call("export", MODEL, out=OUT), ", or with optimum")


def _decoder(graph: Graph) -> Decoder:
    named: dict[str, Value] = {}
    pasts: dict[Key, Value] = {}
    switches = []
    for value in graph.inputs:
        key = _key(value.name)
        if value.name in (Role.IDS, _HIDDEN, _ENCODER_MASK):
            named[value.name] = value
        elif key and value.dtype in DTYPES and len(value.shape) == 4:
            pasts[key] = value
        elif is_switch(value):
            switches.append(value)
        else:
            raise unknown_input(graph, value)
    if Role.IDS not in named or graph.output("logits") is None:
        problem = f"{shown(graph.path)} does not compute logits from input_ids"
        raise UnreadableError(problem, _EXPORT_PAIR, "onnx.inputs")
    presents = {key: value.name for value in graph.outputs if (key := _key(value.name))}
    return Decoder(
        graph, named[Role.IDS], named.get(_HIDDEN), named.get(_ENCODER_MASK), tuple(switches), pasts, presents
    )


def _key(name: str) -> Key | None:
    match = _PAIR_CACHE.fullmatch(name)
    return (int(match["layer"]), match["side"], match["part"]) if match else None


def pair_faults(pair: Pair) -> Iterator[str]:
    """Yield what prevents running the decoders at every shape: fixed axes, or no way to mask the encoder's padding."""
    for decoder in pair.decoders:
        encoded = [(value, (0, 1)) for value in (decoder.hidden, decoder.mask) if value is not None]
        for value, axes in ((decoder.ids, (0,)), *encoded, *((value, (0, 2)) for value in decoder.pasts.values())):
            for axis in axes:
                if axis < len(value.shape) and isinstance(value.shape[axis], int):
                    yield f"the axis {axis} of the input {shown(value.name)} is fixed at {value.shape[axis]}"
        if decoder.mask is None and Role.MASK in pair.inputs:
            yield f"{shown(decoder.graph.path)} has no input {_ENCODER_MASK}, so it cannot run padded batches"


# Find the graphs of an encoder-decoder in a directory, by the names that optimum and transformers.js use.

ENCODER, DECODER = "encoder_model", "decoder_model_merged"
"""The graphs that `tieconv export` writes, without the extension."""
FIRST, STEP = "decoder_model", "decoder_with_past_model"
"""optimum's decoders: for the first tokens, and for a token after a past."""


def pair_files(path: str) -> tuple[str, str, str] | None:
    """Return encoder, decoder of the first tokens and decoder of later steps in ``path`` or in its folder `onnx`.

    Returns ``None`` without a whole pair. fp16 graphs of transformers.js have names that end in `_fp16`. A merged
    decoder comes before two decoders.
    """
    for folder in (path, os.path.join(path, "onnx")):
        for suffix in ("", "_fp16"):
            for first, step in ((DECODER, DECODER), (FIRST, STEP)):
                names = [os.path.join(folder, f"{stem}{suffix}.onnx") for stem in (ENCODER, first, step)]
                if all(map(os.path.isfile, names)):
                    return names[0], names[1], names[2]
    return None


def with_fixed_features(pair: Pair, checkpoint: Checkpoint) -> Pair:
    """Return the pair with a fixed shape of each row of its features. optimum leaves all axes open.

    Raises `UnreadableError` if the model's encoder reads something else, and `RefusedError` if its shape is not fixed.
    """
    value = pair.features
    if value is None:
        return pair
    name = architecture(checkpoint.config_values, checkpoint.source)
    cls = getattr(need("transformers", "onnx", "the torch reference"), name, None)
    reads = planned_encoder_input(cls, checkpoint.root)
    if reads is None or reads.name != value.name or len(reads.shape) != len(value.shape) - 1:
        problem = f"{shown(pair.encoder.path)} reads {shown(value.name)} {list(value.shape)}"
        hint = "give the model that was exported"
        raise UnreadableError(f"{problem}, but {shown(name)} does not", hint, "onnx.inputs")
    sides = (side if isinstance(side, int) else fixed for side, fixed in zip(value.shape[1:], reads.shape, strict=True))
    return replace(pair, features=replace(value, shape=(value.shape[0], *sides)))


def as_one_graph(path: str, pair: Pair) -> Graph:
    """Return inputs, outputs and weights of all graphs, with the graph's file before each name.

    A byte range that several graphs read with one type and shape is one weight.
    """
    weights: dict[object, Initializer] = {}
    inputs: list[Value] = []
    outputs: list[Value] = []
    for graph in pair.graphs:
        file = os.path.basename(graph.path)
        inputs += (replace(value, name=f"{file}: {value.name}") for value in graph.inputs)
        outputs += (replace(value, name=f"{file}: {value.name}") for value in graph.outputs)
        for weight in graph.weights:
            data = getattr(weight.tensor, "path", None)
            key: tuple[object, ...] = (graph.path, weight.name, id(weight))
            if data is not None:
                start = int(weight.tensor.offset or 0)
                key = (os.path.realpath(data), start, weight.nbytes, weight.dtype, weight.shape)
            weights.setdefault(key, replace(weight, name=f"{file}: {weight.name}"))
    return Graph(path, pair.first.graph.opset, tuple(inputs), tuple(outputs), tuple(weights.values()), None)
