"""Which rows have a token: the ids of tokenizer.json (or vocab.json), read as JSON within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from tieconv.analysis.tables import Array
from tieconv.checkpoint.records import Files
from tieconv.errors import UnreadableError
from tieconv.formats.documents import read_bytes
from tieconv.formats.strict_json import loads

LIMIT = 128_000_000
"""Bytes of a tokenizer that are read: the largest published ones have a third of that."""

_LARGEST = 1 << 31

_DIGITS = 31
"""Of an integer: transformers writes 10³⁰ for a length without a limit."""

_Entries = Callable[[Mapping[str, object]], Iterator[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Each id that the tokenizer can produce, with its text; ``file`` is where that is from."""

    file: str
    text: Mapping[int, str]

    def used(self, rows: int) -> Array:
        """Which of the first ``rows`` rows have a token: (rows,) of bool."""
        marks = np.zeros(rows, bool)
        ids = np.fromiter(self.text, "i8", len(self.text))
        marks[ids[ids < rows]] = True
        return marks


def read_tokens(files: Files, names: Mapping[str, int]) -> Tokens | None:
    """The tokens of the model whose other files are ``names``; ``None`` where no tokenizer can be read as JSON.

    A tokenizer that is malformed is as good as none here: the rest of the analysis does not need it.
    """
    for name, entries in (("tokenizer.json", _of_tokenizer), ("vocab.json", _of_vocabulary)):
        found = _read(files, name, entries) if name in names else {}
        if found:
            more = (_read(files, other, added) for other, added in _ADDED.items() if other in names)
            return Tokens(name, reduce(or_, more, {}) | found)
    return None


def _read(files: Files, name: str, entries: _Entries) -> dict[int, str]:
    """Text by id; nothing where the file is no JSON."""
    try:
        document = loads(read_bytes(files, name, LIMIT), name, limit=LIMIT, lenient=True, digits=_DIGITS)
    except UnreadableError:
        return {}
    return {number: text for text, number in entries(document) if _is_id(number)}


def _is_id(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _LARGEST


def _of_tokenizer(document: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, Mapping):
        yield from _of_vocabulary(vocabulary)
    elif isinstance(vocabulary, list):  # Unigram: pairs of text and score, the place is the id
        for number, entry in enumerate(vocabulary):
            if isinstance(entry, list) and entry:
                yield str(entry[0]), number
    added = document.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, Mapping):
            yield str(entry.get("content")), entry.get("id")  # type: ignore[misc]


def _of_config(document: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """What transformers adds to the tokenizer as it loads it: {id as text: {"content": …}}."""
    added = document.get("added_tokens_decoder")
    for number, entry in added.items() if isinstance(added, Mapping) else ():
        if isinstance(entry, Mapping) and str(number).isdecimal() and len(str(number)) <= 10:
            yield str(entry.get("content")), int(number)


def _of_vocabulary(document: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    yield from document.items()  # type: ignore[misc]


_ADDED: Mapping[str, _Entries] = {"added_tokens.json": _of_vocabulary, "tokenizer_config.json": _of_config}
"""Files whose tokens come on top of those of the vocabulary."""
