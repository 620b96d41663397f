"""Limit the memory for the files of one tokenizer, counted before it is used."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

from tieconv.errors import UnreadableError
from tieconv.formats.json.strict import value_cost
from tieconv.text import shown

MAX_TOKENS = 500_000
"""Tokens of all vocabularies of one model. Gemma 3 has 262,145."""
MAX_TEXT = 64_000_000
"""Bytes of memory for their texts: half a million texts of 20 non-Latin characters."""
MAX_MERGES = 2_000_000
"""Merges of one vocabulary, which are not kept. Gemma 3 has 514,906."""
MAX_SETTINGS = 8_000_000
"""Bytes of everything else in these files."""
MAX_VALUES = 64_000_000
"""Bytes of memory for the values in everything else."""


class Allowance:
    """The memory that the files of one tokenizer may still use. Each method raises the error of `too_large`."""

    def __init__(self) -> None:
        self._tokens, self._text, self._merges = MAX_TOKENS, MAX_TEXT, MAX_MERGES
        self._settings, self._values = MAX_SETTINGS, MAX_VALUES

    def tokens(self, texts: Iterable[str], count: int, name: str) -> None:
        """Take ``count`` tokens with these texts."""
        self._tokens -= count
        if self._tokens >= 0:
            self._text -= sum(map(getsizeof, texts))
        if self._tokens < 0 or self._text < 0:
            raise too_large(name)

    def merges(self, count: int, name: str) -> None:
        """Take ``count`` merges."""
        self._merges -= count
        if self._merges < 0:
            raise too_large(name)

    def size(self, size: int, name: str) -> None:
        """Refuse a text of ``size`` bytes that is no longer allowed."""
        if size > self._settings:
            raise too_large(name)

    def settings(self, data: bytes, name: str) -> None:
        """Take the values of a text."""
        self.size(len(data), name)
        self._settings -= len(data)
        self._values -= value_cost(data)
        if self._values < 0:
            raise too_large(name)


def too_large(name: str) -> UnreadableError:
    """Return the error for a file that exceeds a limit."""
    return UnreadableError(
        f"{shown(name)} is larger than tieconv reads", "docs/formats.md has the limits", "json.too-large"
    )
