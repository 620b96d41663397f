"""Find the roles of the inputs and outputs of an encoder and of its decoders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.onnx.parity.encoder_decoder.pair_files import PairFiles
from tieconv.onnx.parity.graph.bindings import Bindings, Cache, Kind, Role, unknown_input
from tieconv.onnx.parity.graph.file import DTYPES, Graph, Value, read_graph
from tieconv.onnx.parity.graph.switches import is_switch, switch_notes
from tieconv.text import shown

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
