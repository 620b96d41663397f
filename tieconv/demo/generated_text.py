"""The generated text of a run: what is trained on, what is held out, and how often each word occurs."""

from __future__ import annotations

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.demo.corpus import Array, grammar, sample
from tieconv.demo.toy_settings import BATCH, CONTEXT, HELD_OUT, WORDS

_STREAMS = 256


@record
class Text:
    """``train`` and ``held_out`` are (passages, `CONTEXT`) word numbers, ``counts`` (`WORDS`,) of the training text."""

    words: tuple[str, ...]
    train: Array
    held_out: Array
    counts: Array

    @property
    def unigram(self) -> float:
        """Nats per word of a model that knows how often words occur and nothing else."""
        chances = (self.counts + 0.5) / (self.counts + 0.5).sum()
        return float(-np.log(chances)[self.held_out[:, 1:]].mean())


def generate(steps: int, seed: int) -> Text:
    """The text that so many steps read once; the same for the same seed."""
    made = grammar(WORDS, seed)
    passages = HELD_OUT + steps * BATCH
    each = -(-passages // _STREAMS) * CONTEXT
    sampled = sample(made, _STREAMS, each, seed + 1).reshape(-1, CONTEXT)
    chosen = np.random.default_rng(seed + 2).permutation(len(sampled))[:passages]
    train, held_out = sampled[chosen[HELD_OUT:]], sampled[chosen[:HELD_OUT]]
    return Text(made.words, train, held_out, np.bincount(train.ravel(), minlength=WORDS))
