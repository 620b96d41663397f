"""Generate a text from a grammar of made-up words. Every word is made by this project (Apache-2.0).

A word has two independent roles: which words may precede it, and which may follow it. An input table learns the second
role: the word is given, and the model predicts the next one. An output table learns the first: the context is given,
and the model chooses the word. So the two tables have something to disagree about. Within a role, word frequencies
follow Zipf's law. Each passage has a topic that favours its words, as in a natural text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record

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
    return Grammar(_names(words, chance), after, successors, draws)


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
    """Return the distribution as `_GRAIN` equally likely draws."""
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, (np.arange(_GRAIN) + 0.5) / _GRAIN), len(weights) - 1)


def _names(words: int, chance: np.random.Generator) -> tuple[str, ...]:
    """Return ``words`` different words, short ones first as in most languages."""
    names: dict[str, None] = {}
    while len(names) < words:
        syllables = 1 + min(3, len(names) // 30)
        names["".join(chance.choice(_SYLLABLES, syllables))] = None
        if syllables == 1 and len(names) >= len(_SYLLABLES) // 2:
            break
    while len(names) < words:
        names["".join(chance.choice(_SYLLABLES, 2 + (len(names) > 400)))] = None
    return tuple(names)
