"""The settings of the toys, and the text that they learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record

# Settings of the toy, and the figures of a reference run on natural text.

WORDS = 1984
VOCABULARY = 2048
"""Rows of the tables: the words, and padding rows that no text uses."""

WIDTH = 64
LAYERS = 2
HEADS = 4
BATCH = 16
CONTEXT = 64
HELD_OUT = 256
"""Passages of `CONTEXT` words that no training step reads."""

STEPS = 1000
RATE = 3e-3
DECAY = 0.1


@record
class Toy:
    """A model to train: its directory, whether it is tied, and its number, which decides its initial weights."""

    name: str
    tied: bool
    number: int

    def seed(self, run: int) -> int:
        """Return the seed of the weights and of the order of the text in the run of seed ``run``."""
        return len(TOYS) * run + self.number


TOYS = (Toy("tied", True, 0), Toy("untied", False, 1), Toy("untied-second", False, 2))
TIED, UNTIED, SECOND = TOYS


REFERENCE: Mapping[str, tuple[float, ...]] = {
    "procrustes": (0.219, 0.279, 0.611, 0.304, 0.659),
    "least squares": (0.324, 0.392, 0.698, 0.384, 0.732),
    "knn": (0.052, 0.089, 0.288, 0.179, 0.418),
    "rsa": (0.044, 0.073, 0.946, 0.218, 0.967),
    "norms": (-0.448, -0.390, 0.971, 0.897, 0.979),
    "cka": (0.029, 0.042, 0.958, 0.283, 0.958),
}
"""Figures for E→U, E→T, U→T, E→E' and U→U' of a larger toy on natural text.

The toy is a Llama of 2 layers and width 96 with a BPE of 4096 tokens. It read 11.6 million tokens in 1500 steps of
2048.
"""

REFERENCE_FLOORS: Mapping[str, tuple[float, float, float]] = {
    "procrustes": (0.106, 0.104, 0.090),
    "least squares": (0.136, 0.132, 0.128),
}
"""Figures for E→U, E→T and U→T after a permutation of the reference run's tokens."""

# Generate a text from a grammar of made-up words. Every word is made by this project (Apache-2.0).
#
# A word has two independent roles: which words may precede it, and which may follow it. An input table learns the
# second role: the word is given, and the model predicts the next one. An output table learns the first: the context
# is given, and the model chooses the word. So the two tables have something to disagree about. Within a role, word
# frequencies follow Zipf's law. Each passage has a topic that favours its words, as in a natural text.

Array = npt.NDArray[Any]

ROLES = 16
"""Number of roles on either side of a word."""

TOPICS = 8
"""Number of topics that a passage can have."""

PASSAGE = 64
"""Words per topic."""

FAVOUR = 6.0
"""How many times likelier a word of the passage's topic is."""

_GRAIN = 1 << 14  # a distribution is kept as this many equally likely draws
_SYLLABLES = [
    onset + vowel for onset in ("b", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "v") for vowel in "aeiou"
]


@record
class Grammar:
    """Which word may follow which: ``follows`` (words,) is the role that each word asks for next."""

    words: tuple[str, ...]
    follows: Array
    successors: Array  # (roles, grain): equally likely roles of the next word
    draws: Array  # (topics, roles, grain): equally likely words


def grammar(words: int, seed: int = 0) -> Grammar:
    """Return a grammar of ``words`` words, the likeliest first."""
    chance = np.random.default_rng(seed)
    before, after, topic = (chance.integers(0, kinds, words) for kinds in (ROLES, ROLES, TOPICS))
    before[:ROLES] = np.arange(ROLES)  # no role is empty
    weight = 1.0 / (np.arange(words) + 2.7)
    draws = np.empty((TOPICS, ROLES, _GRAIN), np.int32)
    for about in range(TOPICS):
        favoured = weight * np.where(topic == about, FAVOUR, 1.0)
        for role in range(ROLES):
            draws[about, role] = _quantiles(np.where(before == role, favoured, 0.0))
    successors = np.stack([_quantiles(row) for row in chance.dirichlet(np.full(ROLES, 0.15), ROLES)])
    # ``words`` different words, short ones first as in most languages.
    names: dict[str, None] = {}
    while len(names) < words:
        syllables = 1 if len(names) < len(_SYLLABLES) // 2 else 2 + (len(names) > 400)
        names["".join(chance.choice(_SYLLABLES, syllables))] = None
    return Grammar(tuple(names), after, successors, draws)


def sample(made: Grammar, streams: int, length: int, seed: int = 0) -> Array:
    """Return (streams, length) word numbers, the same for the same seed."""
    chance = np.random.default_rng(seed)
    text = np.empty((streams, length), np.int64)
    role = chance.integers(0, ROLES, streams)
    for position in range(length):
        if position % PASSAGE == 0:
            topic = chance.integers(0, TOPICS, streams)
        word = made.draws[topic, role, chance.integers(0, _GRAIN, streams)]
        text[:, position] = word
        role = made.successors[made.follows[word], chance.integers(0, _GRAIN, streams)]
    return text


def _quantiles(weights: Array) -> Array:
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, (np.arange(_GRAIN) + 0.5) / _GRAIN), len(weights) - 1)


# Generate the text of a run: a training part, a held-out part, and the count of each word.

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
