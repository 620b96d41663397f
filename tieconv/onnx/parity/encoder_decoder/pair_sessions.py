"""Compute logits with an encoder and a decoder, in one pass or step by step with both caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.encoder_decoder.pair_roles import Decoder, Key, Pair
from tieconv.onnx.parity.graph.bindings import Role
from tieconv.onnx.parity.graph.file import Value
from tieconv.onnx.parity.graph.forward import as_tensor, extended
from tieconv.onnx.parity.graph.switches import switched
from tieconv.onnx.session.open_ import Session
from tieconv.reference import Batch, Features

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
