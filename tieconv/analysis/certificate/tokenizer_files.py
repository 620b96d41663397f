"""The files of a tokenizer beside the weights: which there are, and the tokens that each has by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from tieconv.checkpoint.records import Files
from tieconv.errors import UnreadableError
from tieconv.formats.documents import read_bytes
from tieconv.formats.strict_json import loads

LIMIT = 128_000_000
"""Bytes of a tokenizer that are read: the largest published ones have a third of that."""

_LARGEST = 1 << 31

_DIGITS = 31
"""Of an integer: transformers writes 10³⁰ for a length without a limit."""

TOKENIZER, VOCABULARY, WORDS = "tokenizer.json", "vocab.json", "vocab.txt"
ADDED, CONFIG, SPECIAL = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"
_JSON = (TOKENIZER, VOCABULARY, ADDED, CONFIG, SPECIAL)

_UNREAD = ("*.model", "*.spm", "*.tiktoken", "*.codes", "*.vocab", "tekken.json", "dict.txt", "vocab-*.json",
           "tokenizer.*.json", "emoji.json", "entity_vocab.json", "word_shape.json",
           "word_pronunciation.json")  # fmt: skip
"""Vocabularies of other formats."""

PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


@dataclass(frozen=True)
class TokenizerFiles:
    """``documents`` are the JSON files that could be read, ``words`` the lines of vocab.txt.

    ``broken`` names those that could not be read, ``unread`` the vocabularies of other formats, ``processors`` the
    configs of processors.
    """

    documents: Mapping[str, Mapping[str, object]]
    words: tuple[str, ...]
    broken: tuple[str, ...]
    unread: tuple[str, ...]
    processors: tuple[str, ...]

    def document(self, name: str) -> Mapping[str, object]:
        """A file's content; empty where it is absent."""
        return self.documents.get(name, {})

    @cached_property
    def model(self) -> dict[int, str]:
        """The vocabulary of tokenizer.json, without its added tokens."""
        model = self.document(TOKENIZER).get("model")
        vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
        if isinstance(vocabulary, Mapping):
            return _by_id(vocabulary.items())
        if isinstance(vocabulary, list):  # Unigram: pairs of text and score, the index is the id
            entries = enumerate(vocabulary)
            return {number: str(entry[0]) for number, entry in entries if isinstance(entry, list) and entry}
        return {}

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """The vocabulary of vocab.json."""
        return _by_id(self.document(VOCABULARY).items())

    @cached_property
    def vocabularies(self) -> tuple[dict[int, str], ...]:
        """Every vocabulary that a class may load, each without the tokens that come on top."""
        every = (self.model, self.vocabulary, dict(enumerate(self.words)))
        return tuple(found for found in every if found)

    @cached_property
    def added(self) -> dict[int, str]:
        """The tokens on top of a vocabulary that have an id in a file."""
        return _by_id([*self._in_tokenizer(), *self.document(ADDED).items(), *self._in_config()])

    def _in_tokenizer(self) -> Iterator[tuple[str, object]]:
        added = self.document(TOKENIZER).get("added_tokens")
        for entry in added if isinstance(added, list) else ():
            if isinstance(entry, Mapping):
                yield str(entry.get("content")), entry.get("id")

    def _in_config(self) -> Iterator[tuple[str, object]]:
        """What transformers adds to the tokenizer as it loads it: {id as text: {"content": …}}."""
        added = self.document(CONFIG).get("added_tokens_decoder")
        for number, entry in added.items() if isinstance(added, Mapping) else ():
            if isinstance(entry, Mapping) and str(number).isdecimal() and len(str(number)) <= 10:
                yield str(entry.get("content")), int(number)


def read_files(files: Files, names: Mapping[str, int]) -> TokenizerFiles:
    """Read what there is among ``names``. Nothing is raised for a malformed file."""
    documents: dict[str, Mapping[str, object]] = {}
    broken: list[str] = []
    words: tuple[str, ...] = ()
    for name in filter(names.__contains__, _JSON):
        try:
            documents[name] = loads(read_bytes(files, name, LIMIT), name, limit=LIMIT, lenient=True, digits=_DIGITS)
        except UnreadableError:
            broken.append(name)
    if WORDS in names:
        words = _lines(read_bytes(files, WORDS, LIMIT))
        if not words:
            broken.append(WORDS)
    top = sorted(name for name in names if "/" not in name)
    unread = tuple(name for name in top if any(fnmatchcase(name, pattern) for pattern in _UNREAD))
    return TokenizerFiles(documents, words, tuple(broken), unread, tuple(filter(names.__contains__, PROCESSORS)))


def _lines(data: bytes) -> tuple[str, ...]:
    """The lines of a text; none where it is not UTF-8 or too long to be read whole."""
    try:
        text = data.decode() if len(data) <= LIMIT else ""
    except UnicodeDecodeError:
        return ()
    return tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def _by_id(entries: object) -> dict[int, str]:
    """Text by id, of pairs of a text and an id."""
    return {number: str(text) for text, number in entries if is_id(number)}  # type: ignore[attr-defined]


def is_id(number: object) -> bool:
    """Whether a value of JSON can be the id of a token."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _LARGEST
