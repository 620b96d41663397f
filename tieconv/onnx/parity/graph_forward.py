"""Compute logits with a graph: of a batch in one pass, or piece by piece with its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.bindings import Bindings, Padding, Role, behind, in_front, switched
from tieconv.onnx.parity.graph_file import Value
from tieconv.onnx.session.open_ import Session
from tieconv.reference import Batch


@record
class GraphModel:
    """An open session with the roles of its inputs; ``window`` is the config's sliding window."""

    __eq__ = object.__eq__  # compare by identity: arrays and sessions have no useful equality
    __hash__ = object.__hash__

    session: Session
    bindings: Bindings
    window: int = 0

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return logits (batch × sequence × vocabulary) of one pass without a past."""
        return self._run(batch, 0, self.no_past(batch))[0]

    def steps(self, batch: Batch, pieces: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Yield logits of consecutive ``pieces`` of the sequence; each piece feeds its cache to the next."""
        past, start = self.no_past(batch), 0
        for length in pieces:
            end = start + length
            logits, past = self._run(batch.until(end), start, past)
            yield logits
            start = end

    def generate(self, batch: Batch, steps: int) -> torch.Tensor:
        """Return greedy tokens (batch × steps), each fed back with the cache."""
        past, start, tokens = self.no_past(batch), 0, []
        for _ in range(steps):
            logits, past = self._run(batch, start, past)
            start = batch.ids.shape[1]
            tokens.append(logits[:, -1].argmax(-1))
            batch = extended(batch, tokens[-1])
        return torch.stack(tokens, 1)

    def _run(self, batch: Batch, start: int, past: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        feeds = self.feeds(batch, start)
        logits = self.bindings.logits
        names = [logits, *(cache.present for cache in self.bindings.caches)]
        made = self.session.run(feeds | past, names, logits)
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
        return feeds | {value.name: self._window_feed(value) for value in self.bindings.windows}

    def _token_feed(self, role: Role, value: Value, batch: Batch, start: int) -> Any:
        arrays = {
            Role.IDS: batch.ids[:, start:],
            Role.MASK: batch.mask,
            Role.POSITIONS: _positions(batch, self.bindings.axes)[..., start:],
            Role.TYPES: None if batch.types is None else batch.types[:, start:],
            Role.DECODER_IDS: batch.decoder_ids,
            Role.DECODER_MASK: batch.decoder_mask,
            Role.EMBEDS: None if batch.embeds is None else batch.embeds[:, start:],
            Role.BLOCKS: batch.blocks,
        }[role]
        if role is Role.BLOCKS and arrays is None:
            arrays = torch.full_like(batch.ids, self.bindings.causal)
        if role is Role.EMBEDS:
            return self.session.floats(arrays, value.dtype)
        dtype = np.int32 if value.dtype == "INT32" else np.int64
        return self.session.value(np.ascontiguousarray(arrays.numpy().astype(dtype)))

    def _window_feed(self, value: Value) -> Any:
        return self.session.value(np.full((1,) * len(value.shape), self.window, np.int64))

    def no_past(self, batch: Batch) -> dict[str, Any]:
        """Return caches without a token."""
        rows = batch.ids.shape[0]
        empty = {}
        for cache in self.bindings.caches:
            heads, width = cache.past.shape[1], cache.past.shape[3]
            shape = rows, fixed(heads), cache.capacity, fixed(width)
            empty[cache.past.name] = self.session.empty(shape, cache.past.dtype)
        return empty


def _positions(batch: Batch, axes: int) -> torch.Tensor:
    """Return the positions; one number counts for each axis of M-RoPE."""
    positions: torch.Tensor = batch.positions
    return torch.stack([positions] * axes) if axes > 1 and positions.ndim == 2 else positions


def extended(batch: Batch, tokens: torch.Tensor) -> Batch:
    """Return the batch with one more token in each row, of the first type and in no block."""
    if batch.decoder_ids is not None:
        return replace(batch, decoder_ids=torch.cat([batch.decoder_ids, tokens[:, None]], 1))
    ones = torch.ones(tokens.shape[0], 1, dtype=torch.int64)
    types = None if batch.types is None else torch.cat([batch.types, ones - 1], 1)
    more = torch.cat([batch.ids, tokens[:, None]], 1), torch.cat([batch.mask, ones], 1)
    blocks = None if batch.blocks is None else torch.cat([batch.blocks, batch.blocks[:, -1:]], 1)
    return replace(batch, ids=more[0], mask=more[1], types=types, blocks=blocks)


def fixed(side: int | str | None) -> int:
    """Return a side that the structure's checks found to be fixed."""
    assert isinstance(side, int), "an open side, such as the width of a cache, is a structure fault"
    return side


def as_tensor(value: Any) -> torch.Tensor:
    """Return a value in main memory as a torch tensor. bf16 uses DLPack, because numpy has no bf16."""
    if value.data_type() == "tensor(bfloat16)":
        return torch.from_dlpack(value._ortvalue.to_dlpack()).clone()
    return torch.from_numpy(value.numpy())
