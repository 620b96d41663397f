"""Run an encoder and a decoder with caches as one model: their files, roles, axes and weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.onnx.parity.bindings import Bindings, Cache, Kind, Role, is_switch, switch_notes, switched, unknown_input
from tieconv.onnx.parity.graph_file import DTYPES, Graph, Initializer, Value, read_graph
from tieconv.onnx.parity.graph_forward import as_tensor, extended
from tieconv.onnx.session.open_ import Session
from tieconv.reference import Batch, Features, architecture
from tieconv.reference.model import planned_encoder_input
from tieconv.reference.packages import need
from tieconv.text import shown

# Compute logits with an encoder and a decoder, in one pass or step by step with both caches.


_OPEN = 1
"""Heads and width of an empty cache whose graph leaves them open."""


@record
class PairModel:
    """Open sessions of the graphs of a `Pair`, by path."""

    __eq__ = object.__eq__  # compare by identity: arrays and sessions have no useful equality
    __hash__ = object.__hash__

    sessions: Mapping[str, Session]
    pair: Pair
    encoded: dict[Features, torch.Tensor] = field(default_factory=dict)
    """The encoder's last hidden states of features, each computed once."""

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return logits (batch × decoder sequence × vocabulary) of one pass of the decoder, without a past."""
        return next(self.steps(batch, (batch.answered.shape[1],)))

    def steps(self, batch: Batch, pieces: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Yield logits of consecutive ``pieces`` of the decoder's tokens. The encoder runs once."""
        states, past, start = self._states(batch), dict[Key, Any](), 0
        for length in pieces:
            logits, past = self._run(batch.until(start + length), start, states, past)
            yield logits
            start += length

    def generate(self, batch: Batch, steps: int) -> torch.Tensor:
        """Return greedy tokens (batch × steps), each fed back with the caches."""
        states, past, start, tokens = self._states(batch), dict[Key, Any](), 0, []
        for _ in range(steps):
            logits, past = self._run(batch, start, states, past)
            start = batch.answered.shape[1]
            tokens.append(logits[:, -1].argmax(-1))
            batch = extended(batch, tokens[-1])
        return torch.stack(tokens, 1)

    def _states(self, batch: Batch) -> Any:
        """Return the encoder's last hidden states as a value."""
        session = self.sessions[self.pair.encoder.path]
        if self.pair.features is not None:
            return self._repeated(session, self.pair.features, batch)
        arrays = {Role.IDS: batch.ids, Role.MASK: batch.mask}
        feeds = {value.name: _fed(session, value, arrays[role]) for role, value in self.pair.inputs.items()}
        return session.run(feeds, [self.pair.states], "")[self.pair.states]

    def _repeated(self, session: Session, value: Value, batch: Batch) -> Any:
        """Return the states of the batch's features, one for each row of the decoder."""
        features, states = batch.features, self.pair.encoder.output(self.pair.states)
        assert features is not None
        assert states is not None
        if features not in self.encoded:
            made = session.run({value.name: session.floats(features.values, value.dtype)}, [states.name], states.name)
            self.encoded[features] = as_tensor(made[states.name])
        return session.floats(features.for_rows(self.encoded[features], len(batch.answered)), states.dtype)

    def _run(
        self, batch: Batch, start: int, states: Any, past: Mapping[Key, Any]
    ) -> tuple[torch.Tensor, dict[Key, Any]]:
        decoder = self.pair.step if start else self.pair.first
        session = self.sessions[decoder.graph.path]
        feeds = self._feeds(decoder, session, batch, start, states)
        for key, value in decoder.pasts.items():
            feeds[value.name] = past[key] if start else _empty(session, value, len(batch.answered))
        made = session.run(feeds, ["logits", *decoder.presents.values()], "logits")
        carried = dict(past)
        for key, name in decoder.presents.items():
            # After the first pass, optimum's graphs return an empty cross-attention cache: the first one stays.
            if key[1] == "decoder" or key not in past or made[name].shape() == past[key].shape():
                carried[key] = made[name]
        return as_tensor(made["logits"]), carried

    def _feeds(self, decoder: Decoder, session: Session, batch: Batch, start: int, states: Any) -> dict[str, Any]:
        feeds = {decoder.ids.name: _fed(session, decoder.ids, batch.answered[:, start:])}
        if decoder.hidden is not None:
            feeds[decoder.hidden.name] = states
        if decoder.mask is not None:
            feeds[decoder.mask.name] = _fed(session, decoder.mask, batch.mask)
        for value in decoder.switches:
            feeds[value.name] = session.value(switched(value, start, batch.answered.shape[1]))
        return feeds


def _fed(session: Session, value: Value, tokens: torch.Tensor) -> Any:
    dtype = np.int32 if value.dtype == "INT32" else np.int64
    return session.value(np.ascontiguousarray(tokens.numpy().astype(dtype)))


def _empty(session: Session, value: Value, rows: int) -> Any:
    """Return a cache without a token."""
    heads, width = (side if isinstance(side, int) else _OPEN for side in (value.shape[1], value.shape[3]))
    return session.empty((rows, heads, 0, width), value.dtype)


# Find the roles of the inputs and outputs of an encoder and of its decoders.


_HIDDEN, _STATES, _MASK = "encoder_hidden_states", "last_hidden_state", "encoder_attention_mask"
_CACHE = re.compile(
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
    def graphs(self) -> tuple[Graph, ...]:
        """Each graph once."""
        decoders = (self.first.graph,) if self.step is self.first else (self.first.graph, self.step.graph)
        return (self.encoder, *decoders)

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
        for decoder in dict.fromkeys((self.first.graph.path, self.step.graph.path)):
            chosen = self.first if decoder == self.first.graph.path else self.step
            yield chosen.graph, chosen.bindings


def read_pair(files: PairFiles) -> Pair:
    """Read the graphs. Raises `UnreadableError` for a graph that cannot be read, or that has unknown inputs."""
    encoder = read_graph(files.encoder)
    inputs: dict[Role, Value] = {}
    features = _features(encoder)
    for value in encoder.inputs if features is None else ():
        if value.name not in (Role.IDS, Role.MASK):
            raise unknown_input(encoder, value)
        inputs[Role(value.name)] = value
    if encoder.output(_STATES) is None or (Role.IDS not in inputs and features is None):
        raise UnreadableError(
            f"{shown(encoder.path)} does not compute {_STATES} from input_ids", _EXPORT, "onnx.inputs"
        )
    first = _decoder(read_graph(files.first))
    step = first if files.step == files.first else _decoder(read_graph(files.step))
    _check(first, step)
    if features is not None:
        _check_no_mask(first, step)
    return Pair(encoder, inputs, _STATES, first, step, features)


def _features(encoder: Graph) -> Value | None:
    """Return the only input of an encoder that reads images or sound."""
    (value,) = encoder.inputs if len(encoder.inputs) == 1 else (None,)
    return value if value is not None and value.dtype in DTYPES and len(value.shape) > 1 else None


def _check_no_mask(*decoders: Decoder) -> None:
    """Raise `UnreadableError` if a decoder masks positions of an encoder whose input has no mask."""
    for decoder in decoders:
        if decoder.mask is not None:
            raise unknown_input(decoder.graph, decoder.mask)


_EXPORT = "export it with tieconv export MODEL -o OUT, or with optimum"


def _decoder(graph: Graph) -> Decoder:
    named: dict[str, Value] = {}
    pasts: dict[Key, Value] = {}
    switches = []
    for value in graph.inputs:
        key = _key(value.name)
        if value.name in (Role.IDS, _HIDDEN, _MASK):
            named[value.name] = value
        elif key and value.dtype in DTYPES and len(value.shape) == 4:
            pasts[key] = value
        elif is_switch(value):
            switches.append(value)
        else:
            raise unknown_input(graph, value)
    if Role.IDS not in named or graph.output("logits") is None:
        raise UnreadableError(f"{shown(graph.path)} does not compute logits from input_ids", _EXPORT, "onnx.inputs")
    presents = {key: value.name for value in graph.outputs if (key := _key(value.name))}
    return Decoder(graph, named[Role.IDS], named.get(_HIDDEN), named.get(_MASK), tuple(switches), pasts, presents)


def _key(name: str) -> Key | None:
    match = _CACHE.fullmatch(name)
    return (int(match["layer"]), match["side"], match["part"]) if match else None


def _check(first: Decoder, step: Decoder) -> None:
    """Check that a step gets every cache from the first pass. Raises `UnreadableError`."""
    own = {key for key in step.pasts if key[1] == "decoder"}
    lacking = sorted((set(step.pasts) - set(first.presents)) | (own - set(step.presents)))
    if lacking or not step.pasts:
        layer = ".".join(map(str, lacking[0])) if lacking else "any layer"
        raise UnreadableError(
            f"{shown(step.graph.path)}: no graph computes the cache of {shown(layer)}", _EXPORT, "onnx.inputs"
        )


def pair_faults(pair: Pair) -> Iterator[str]:
    """Yield what prevents running the decoders at every shape: fixed axes, or no way to mask the encoder's padding."""
    for decoder in dict.fromkeys((id(pair.first), id(pair.step))):
        chosen = pair.first if decoder == id(pair.first) else pair.step
        for value, axes in _dynamic_axes(chosen):
            for axis in axes:
                if axis < len(value.shape) and isinstance(value.shape[axis], int):
                    yield f"the axis {axis} of the input {shown(value.name)} is fixed at {value.shape[axis]}"
        if chosen.mask is None and Role.MASK in pair.inputs:
            yield f"{shown(chosen.graph.path)} has no input {_MASK}, so it cannot run padded batches"


def _dynamic_axes(decoder: Decoder) -> Iterator[tuple[Value, tuple[int, ...]]]:
    yield decoder.ids, (0,)
    for value in filter(None, (decoder.hidden, decoder.mask)):
        yield value, (0, 1)
    for value in decoder.pasts.values():
        yield value, (0, 2)


# Find the graphs of an encoder-decoder in a directory, by the names that optimum and transformers.js use.


ENCODER, DECODER = "encoder_model", "decoder_model_merged"
"""The graphs that `tieconv export` writes, without the extension."""
FIRST, STEP = "decoder_model", "decoder_with_past_model"
"""optimum's decoders: for the first tokens, and for a token after a past."""


@record
class PairFiles:
    """The paths of an encoder, of the decoder for the first tokens, and of the decoder for the later steps."""

    encoder: str
    first: str
    step: str


def pair_files(path: str) -> PairFiles | None:
    """Return the graphs in the directory ``path`` or in its folder `onnx`; ``None`` without a whole pair.

    fp16 graphs of transformers.js have names that end in `_fp16`. A merged decoder comes before two decoders.
    """
    return next(_pairs(path), None) if os.path.isdir(path) else None


def _pairs(path: str) -> Iterator[PairFiles]:
    for folder in (path, os.path.join(path, "onnx")):
        for suffix in ("", "_fp16"):
            for first, step in ((DECODER, DECODER), (FIRST, STEP)):
                names = [os.path.join(folder, f"{stem}{suffix}.onnx") for stem in (ENCODER, first, step)]
                if all(map(os.path.isfile, names)):
                    yield PairFiles(*names)


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
        raise UnreadableError(
            f"{shown(pair.encoder.path)} reads {shown(value.name)} {list(value.shape)}, but {shown(name)} does not",
            "give the model that was exported",
            "onnx.inputs",
        )
    sides = (side if isinstance(side, int) else fixed for side, fixed in zip(value.shape[1:], reads.shape, strict=True))
    return replace(pair, features=replace(value, shape=(value.shape[0], *sides)))


def as_one_graph(path: str, pair: Pair) -> Graph:
    """Return inputs, outputs and weights of all graphs, with the graph's file before each name.

    A byte range that several graphs read is one weight.
    """
    weights: dict[object, Initializer] = {}
    for graph in pair.graphs:
        for weight in graph.weights:
            weights.setdefault(_byte_range(weight) or (graph.path, weight.name, id(weight)), _renamed(graph, weight))
    inputs = tuple(value for graph in pair.graphs for value in _values(graph, graph.inputs))
    outputs = tuple(value for graph in pair.graphs for value in _values(graph, graph.outputs))
    return Graph(path, pair.first.graph.opset, inputs, outputs, tuple(weights.values()), None)


def _byte_range(weight: Initializer) -> tuple[str, int, int, str, tuple[int, ...]] | None:
    """Return the byte range of a weight that is in a data file, with its type and shape."""
    location = getattr(weight.tensor, "path", None)
    if location is None:
        return None
    offset = int(weight.tensor.offset or 0)
    return os.path.realpath(location), offset, weight.nbytes, weight.dtype, weight.shape


def _renamed(graph: Graph, weight: Initializer) -> Initializer:
    return replace(weight, name=f"{os.path.basename(graph.path)}: {weight.name}")


def _values(graph: Graph, values: tuple[Value, ...]) -> Iterator[Value]:
    return (replace(value, name=f"{os.path.basename(graph.path)}: {value.name}") for value in values)
