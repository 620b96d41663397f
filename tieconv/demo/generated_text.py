"""Generate the text of a run: a training part, a held-out part, and the count of each word."""

from __future__ import annotations

import numpy as np

from tieconv.checkpoint.value_type import record
from tieconv.demo.corpus import Array, grammar, sample
from tieconv.demo.toy_settings import BATCH, CONTEXT, HELD_OUT, WORDS

_STREAMS = 256


@record
class Text:
    """Word numbers for training and for testing.

    ``train`` and ``held_out`` are (passages, `CONTEXT`); ``counts`` (`WORDS`,) count the training words.
    """

    words: tuple[str, ...]
    train: Array
    held_out: Array
    counts: Array

    @property
    def unigram(self) -> float:
        """Nats per word of a model that knows only how often each word occurs."""
        chances = (self.counts + 0.5) / (self.counts + 0.5).sum()
        return float(-np.log(chances)[self.held_out[:, 1:]].mean())


def generate(steps: int, seed: int) -> Text:
    """Return a text that ``steps`` steps read once, the same for the same seed."""
    made = grammar(WORDS, seed)
    passages = HELD_OUT + steps * BATCH
    each = -(-passages // _STREAMS) * CONTEXT
    sampled = sample(made, _STREAMS, each, seed + 1).reshape(-1, CONTEXT)
    chosen = np.random.default_rng(seed + 2).permutation(len(sampled))[:passages]
    train, held_out = sampled[chosen[HELD_OUT:]], sampled[chosen[:HELD_OUT]]
    return Text(made.words, train, held_out, np.bincount(train.ravel(), minlength=WORDS))
