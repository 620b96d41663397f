"""A generated text: a grammar of made-up words, whose every word is this project's own (Apache-2.0).

A word has two roles that know nothing of each other: what may stand before it, and what may follow it. An input table
learns the second (the word is given, what comes next?), an output table the first (the context is given, which word?),
so that the two tables have something to disagree about. Within a role words are Zipf-distributed, and each passage
has a topic that favours its own words, as in a natural text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record

Array = npt.NDArray[Any]

ROLES = 16
"""Kinds of neighbours on either side."""

TOPICS = 8
"""What a passage can be about."""

PASSAGE = 64
"""Words of one topic."""

FAVOUR = 6.0
"""How much likelier a word of the passage's topic is."""

_GRAIN = 1 << 14  # a distribution is kept as this many equally likely draws
_SYLLABLES = [
    onset + vowel for onset in ("b", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "v") for vowel in "aeiou"
]


@record
class Grammar:
    """Who may follow whom: ``follows`` (words,) the role that a word asks for next, ``draws`` of (topic, role)."""

    words: tuple[str, ...]
    follows: Array
    successors: Array  # (roles, grain): equally likely roles of the next word
    draws: Array  # (topics, roles, grain): equally likely words


def grammar(words: int, seed: int = 0) -> Grammar:
    """The grammar of so many words, the likeliest first."""
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
    """(streams, length) word numbers; the same for the same seed."""
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
    """The distribution as `_GRAIN` equally likely draws."""
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, (np.arange(_GRAIN) + 0.5) / _GRAIN), len(weights) - 1)


def _names(words: int, chance: np.random.Generator) -> tuple[str, ...]:
    """So many different words, short ones first as in most languages."""
    names: dict[str, None] = {}
    while len(names) < words:
        syllables = 1 + min(3, len(names) // 30)
        names["".join(chance.choice(_SYLLABLES, syllables))] = None
        if syllables == 1 and len(names) >= len(_SYLLABLES) // 2:
            break
    while len(names) < words:
        names["".join(chance.choice(_SYLLABLES, 2 + (len(names) > 400)))] = None
    return tuple(names)
