"""Compute logits with the graphs of a model, in one pass or piece by piece with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.value_type import identity_record
from tieconv.onnx.ort_session import Session
from tieconv.onnx.parity.bindings import Bindings, Key, Padding, Pair, Role, behind, in_front, switched
from tieconv.onnx.parity.graph_file import Value
from tieconv.reference.model import Batch, Features


class CachedModel:
    """A graph that computes the logits of a batch at once, or of consecutive pieces that share a cache."""

    __slots__ = ()

    def no_past(self, batch: Batch) -> Any:
        """Return the state before the first token, for `run`."""
        raise NotImplementedError

    def run(self, batch: Batch, start: int, state: Any) -> tuple[torch.Tensor, Any]:
        """Return the logits of the tokens from ``start`` on, and the state behind them."""
        raise NotImplementedError

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return logits (batch × sequence × vocabulary) of one pass without a past."""
        return self.run(batch, 0, self.no_past(batch))[0]

    def steps(self, batch: Batch, pieces: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Yield logits of consecutive ``pieces`` of the sequence; each piece feeds its cache to the next."""
        state, start = self.no_past(batch), 0
        for length in pieces:
            logits, state = self.run(batch.until(start + length), start, state)
            yield logits
            start += length


@identity_record
class GraphModel(CachedModel):
    """An open session with the roles of its inputs; ``window`` is the config's sliding window."""

    session: Session
    bindings: Bindings
    window: int = 0

    def run(self, batch: Batch, start: int, state: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        logits = self.bindings.logits
        names = [logits, *(cache.present for cache in self.bindings.caches)]
        made = self.session.run(self.feeds(batch, start) | state, names, logits)
        carried = {cache.past.name: made[cache.present] for cache in self.bindings.caches}
        computed = as_tensor(made[logits])
        turned = self.bindings.padding is Padding.BEHIND and not start
        return in_front(computed, batch.mask) if turned else computed, carried

    def feeds(self, batch: Batch, start: int) -> dict[str, Any]:
        """Return values for every input except the caches, from position ``start``."""
        batch = behind(batch, start) if self.bindings.padding is Padding.BEHIND else batch
        roles = self.bindings.inputs.items()
        unfed = Role.EMBEDS if batch.embeds is None else Role.IDS
        feeds = {value.name: self._token_feed(role, value, batch, start) for role, value in roles if role is not unfed}
        for value in self.bindings.switches:
            feeds[value.name] = self.session.value(switched(value, start, batch.answered.shape[1]))
        for value in self.bindings.windows:
            feeds[value.name] = self.session.value(np.full((1,) * len(value.shape), self.window, np.int64))
        return feeds

    def _token_feed(self, role: Role, value: Value, batch: Batch, start: int) -> Any:
        if role is Role.EMBEDS:
            assert batch.embeds is not None
            return self.session.floats(batch.embeds[:, start:], value.dtype)
        if role is Role.BLOCKS:
            blocks = batch.blocks if batch.blocks is not None else torch.full_like(batch.ids, self.bindings.causal)
            return fed(self.session, value, blocks)
        if role is Role.POSITIONS:
            positions, axes = batch.positions, self.bindings.axes
            # M-RoPE counts one number for each of its axes.
            positions = torch.stack([positions] * axes) if axes > 1 and positions.ndim == 2 else positions
            return fed(self.session, value, positions[..., start:])
        arrays = {
            Role.IDS: batch.ids[:, start:],
            Role.MASK: batch.mask,
            Role.TYPES: None if batch.types is None else batch.types[:, start:],
            Role.DECODER_IDS: batch.decoder_ids,
            Role.DECODER_MASK: batch.decoder_mask,
        }
        return fed(self.session, value, arrays[role])

    def no_past(self, batch: Batch) -> dict[str, Any]:
        """Return caches without a token."""
        rows = batch.ids.shape[0]
        empty = {}
        for cache in self.bindings.caches:
            heads, width = cache.past.shape[1], cache.past.shape[3]
            shape = rows, fixed(heads), cache.capacity, fixed(width)
            empty[cache.past.name] = self.session.empty(shape, cache.past.dtype)
        return empty


def fixed(side: int | str | None) -> int:
    """Return a side that the structure's checks found to be fixed."""
    assert isinstance(side, int), "an open side, such as the width of a cache, is a structure fault"
    return side


def as_tensor(value: Any) -> torch.Tensor:
    """Return a value in main memory as a torch tensor. bf16 uses DLPack, because numpy has no bf16."""
    if value.data_type() == "tensor(bfloat16)":
        # Older releases have no public DLPack: https://github.com/microsoft/onnxruntime/issues/24071
        return torch.from_dlpack(value._ortvalue.to_dlpack()).clone()
    return torch.from_numpy(value.numpy())


@identity_record
class PairModel(CachedModel):
    """Open sessions of the graphs of a `Pair`, by path."""

    sessions: Mapping[str, Session]
    pair: Pair
    encoded: dict[Features, torch.Tensor] = field(default_factory=dict)
    """The encoder's last hidden states of features, each computed once."""

    def no_past(self, batch: Batch) -> tuple[Any, dict[Key, Any]]:
        """Return the encoder's last hidden states as a value, and no cache. The encoder runs once for all pieces."""
        session = self.sessions[self.pair.encoder.path]
        if self.pair.features is not None:
            return self._repeated(session, self.pair.features, batch), {}
        arrays = {Role.IDS: batch.ids, Role.MASK: batch.mask}
        feeds = {value.name: fed(session, value, arrays[role]) for role, value in self.pair.inputs.items()}
        return session.run(feeds, [self.pair.states], "")[self.pair.states], {}

    def _repeated(self, session: Session, value: Value, batch: Batch) -> Any:
        """Return the states of the batch's features, one for each row of the decoder."""
        features, states = batch.features, self.pair.encoder.output(self.pair.states)
        assert features is not None and states is not None
        if features not in self.encoded:
            made = session.run({value.name: session.floats(features.values, value.dtype)}, [states.name], states.name)
            self.encoded[features] = as_tensor(made[states.name])
        return session.floats(features.for_rows(self.encoded[features], len(batch.answered)), states.dtype)

    def run(
        self, batch: Batch, start: int, state: tuple[Any, Mapping[Key, Any]]
    ) -> tuple[torch.Tensor, tuple[Any, dict[Key, Any]]]:
        states, past = state
        decoder = self.pair.step if start else self.pair.first
        session = self.sessions[decoder.graph.path]
        feeds = {decoder.ids.name: fed(session, decoder.ids, batch.answered[:, start:])}
        if decoder.hidden is not None:
            feeds[decoder.hidden.name] = states
        if decoder.mask is not None:
            feeds[decoder.mask.name] = fed(session, decoder.mask, batch.mask)
        for value in decoder.switches:
            feeds[value.name] = session.value(switched(value, start, batch.answered.shape[1]))
        for key, value in decoder.pasts.items():
            # A graph may leave heads and width of its cache open. An empty cache has one of each then.
            heads, width = (side if isinstance(side, int) else 1 for side in (value.shape[1], value.shape[3]))
            empty = (len(batch.answered), heads, 0, width)
            feeds[value.name] = past[key] if start else session.empty(empty, value.dtype)
        made = session.run(feeds, ["logits", *decoder.presents.values()], "logits")
        carried = dict(past)
        for key, name in decoder.presents.items():
            # After the first pass, optimum's graphs return an empty cross-attention cache: the first one stays.
            if key[1] == "decoder" or key not in past or made[name].shape() == past[key].shape():
                carried[key] = made[name]
        return as_tensor(made["logits"]), (states, carried)


def fed(session: Session, value: Value, tokens: Any) -> Any:
    """Return ``tokens`` (int64) as a value of the input's integer type."""
    return session.value(np.ascontiguousarray(tokens.numpy().astype(np.int32 if value.dtype == "INT32" else np.int64)))
