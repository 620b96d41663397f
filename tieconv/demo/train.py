"""Train one toy Llama on one core. Imports torch and transformers: import it lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import cos, pi
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tieconv.checkpoint.value_type import record
from tieconv.demo import toy_settings
from tieconv.demo.toy_settings import Array, Text

_WARM = 50  # steps until the full learning rate


@record
class Trained:
    """A model, the training loss of each step, and the loss on the held-out text, in nats per word."""

    model: Any
    losses: tuple[float, ...]
    held_out: float


def train(text: Text, *, tied: bool, seed: int, steps: int, step_done: Callable[[], None] = lambda: None) -> Trained:
    """Train for ``steps`` steps of AdamW. The same arguments give the same weights on the same machine."""
    with _alone(seed):
        model: Any = LlamaForCausalLM(config(tied))
        losses = tuple(_steps(model, text.train, seed, steps, step_done))
        return Trained(model, losses, _loss(model, text.held_out))


def config(tied: bool) -> LlamaConfig:
    """Return the toy's config, without tokens that begin or end a text."""
    return LlamaConfig(
        vocab_size=toy_settings.VOCABULARY,
        hidden_size=toy_settings.WIDTH,
        intermediate_size=2 * toy_settings.WIDTH,
        num_hidden_layers=toy_settings.LAYERS,
        num_attention_heads=toy_settings.HEADS,
        num_key_value_heads=toy_settings.HEADS,
        max_position_embeddings=2 * toy_settings.CONTEXT,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Use one thread, and keep the caller's random numbers unchanged."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _steps(model: Any, passages: Array, seed: int, steps: int, step_done: Callable[[], None]) -> Iterator[float]:
    order = torch.randperm(len(passages), generator=torch.Generator().manual_seed(seed))
    ids = torch.from_numpy(passages)[order].reshape(steps, toy_settings.BATCH, toy_settings.CONTEXT)
    rate, decay = toy_settings.RATE, toy_settings.DECAY
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, betas=(0.9, 0.95))
    model.train()
    for step, batch in enumerate(ids):
        for group in optimiser.param_groups:
            group["lr"] = toy_settings.RATE * (min(1.0, (step + 1) / _WARM) * (0.55 + 0.45 * cos(pi * step / steps)))
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step_done()
        yield float(loss.detach())


def _loss(model: Any, passages: Array) -> float:
    model.eval()
    with torch.no_grad():
        parts = [
            model(input_ids=ids, labels=ids, use_cache=False).loss
            for ids in torch.split(torch.from_numpy(passages), 64)
        ]
    return float(torch.stack(parts).mean())
