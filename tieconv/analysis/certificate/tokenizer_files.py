"""Read the files of a tokenizer next to the weights, and their tokens by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase

from tieconv.analysis.certificate.allowance import MAX_SETTINGS, Allowance, too_large
from tieconv.analysis.certificate.large_json import Batch, LargeJson
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.documents import read_bytes

LIMIT = 100_000_000
"""Bytes of one file. The largest published files have 40 MB."""

_LARGEST = 1 << 31

TOKENIZER, VOCABULARY, WORDS = "tokenizer.json", "vocab.json", "vocab.txt"
ADDED, CONFIG, SPECIAL = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"

_UNREAD = ("*.model", "*.spm", "*.tiktoken", "*.codes", "*.vocab", "tekken.json", "dict.txt", "vocab-*.json",
           "tokenizer.*.json", "emoji.json", "entity_vocab.json", "word_shape.json",
           "word_pronunciation.json")  # fmt: skip
"""Vocabularies of other formats."""

PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


@record
class TokenizerFiles:
    """The content of a tokenizer's files. ``documents`` are the readable JSON files without their tokens.

    ``model`` is the vocabulary of tokenizer.json without its added tokens. ``vocabulary`` is that of vocab.json, and
    ``words`` that of vocab.txt. ``odd_vocabulary`` says that vocab.json has a value that is not an integer. ``broken``
    names the unreadable files, and ``too_large`` the files beyond the `Allowance`. ``unread`` names the vocabularies of
    other formats, and ``processors`` the configs of processors.
    """

    documents: dict[str, Mapping[str, object]] = field(default_factory=dict)
    model: dict[int, str] = field(default_factory=dict)
    vocabulary: dict[int, str] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    odd_vocabulary: bool = False
    added: dict[int, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    too_large: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()

    def document(self, name: str) -> Mapping[str, object]:
        """Return a file's content, empty for an absent file."""
        return self.documents.get(name, {})

    @property
    def vocabularies(self) -> tuple[dict[int, str], ...]:
        """Every vocabulary that a class may load, each without its added tokens."""
        return tuple(vocabulary for vocabulary in (self.model, self.vocabulary, self.words) if vocabulary)


def read_files(files: Files, names: Mapping[str, int]) -> TokenizerFiles:
    """Read the tokenizer's files among ``names``. Malformed and too large files raise no error."""
    top = sorted(name for name in names if "/" not in name)
    reader, broken, oversized = _Reader(files), list[str](), list[str]()
    for name, read in reader.readers.items():
        if name in names:
            try:
                read(name)
            except UnreadableError as error:
                (oversized if error.code == "json.too-large" else broken).append(name)
    return TokenizerFiles(
        documents=reader.documents,
        model=reader.model,
        vocabulary=reader.vocabulary,
        words=reader.words,
        odd_vocabulary=reader.odd_vocabulary,
        added=reader.added,
        broken=tuple(broken),
        too_large=tuple(oversized),
        unread=tuple(name for name in top if any(fnmatchcase(name, pattern) for pattern in _UNREAD)),
        processors=tuple(filter(names.__contains__, PROCESSORS)),
    )


class _Reader:
    """Reads each file into its attribute. The methods raise `UnreadableError`."""

    def __init__(self, files: Files) -> None:
        self._files, self._allowance = files, Allowance()
        self.documents: dict[str, Mapping[str, object]] = {}
        self.model: dict[int, str] = {}
        self.vocabulary: dict[int, str] = {}
        self.words: dict[int, str] = {}
        self.added: dict[int, str] = {}
        self.odd_vocabulary = False
        self.readers: dict[str, Callable[[str], None]] = {
            TOKENIZER: self._tokenizer,
            VOCABULARY: self._vocabulary,
            ADDED: self._added,
            CONFIG: self._config,
            SPECIAL: self._special,
            WORDS: self._words,
        }

    def _tokenizer(self, name: str) -> None:
        model: dict[int, str] = {}
        self.documents[name] = self._large(name).document(
            {
                ("model", "vocab"): lambda batch: self._take(name, model, _vocabulary_pairs(batch, len(model))),
                ("model", "merges"): lambda batch: self._allowance.merges(len(batch), name),
                ("added_tokens",): lambda batch: self._take(name, self.added, _contents(batch)),
            }
        )
        self.model = model

    def _vocabulary(self, name: str) -> None:
        vocabulary: dict[int, str] = {}

        def take(batch: Mapping[str, object]) -> None:
            self._take(name, vocabulary, batch.items())
            self.odd_vocabulary |= any(not isinstance(number, int) for number in batch.values())

        self._large(name).members(take)
        self.vocabulary = vocabulary

    def _added(self, name: str) -> None:
        self._large(name).members(lambda batch: self._take(name, self.added, batch.items()))

    def _config(self, name: str) -> None:
        """Read the tokens that transformers also adds on loading: {id as text: {"content": …}}."""
        self.documents[name] = self._large(name).document(
            {("added_tokens_decoder",): lambda batch: self._take(name, self.added, _decoded(batch))}
        )

    def _special(self, name: str) -> None:
        self.documents[name] = self._large(name).document({})

    def _words(self, name: str) -> None:
        """Read a text with one token on each line."""
        data = read_bytes(self._files, name, MAX_SETTINGS)
        count = data.removesuffix(b"\n").count(b"\n") + 1
        if len(data) > MAX_SETTINGS:
            raise too_large(name)
        self._allowance.tokens((), count, name)
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise UnreadableError(f"{name} is not UTF-8 text, or is empty", "", "tokenizer.words")
        self.words = {number: line.rstrip("\r") for number, line in enumerate(text.split("\n"))}

    def _large(self, name: str) -> LargeJson:
        size = self._files.state(name).size
        if size > LIMIT:
            raise too_large(name)
        return LargeJson(self._files, name, size, self._allowance)

    def _take(self, name: str, tokens: dict[int, str], pairs: Iterable[tuple[str, object]]) -> None:
        """Add tokens by their ids, from pairs of a text and an id."""
        new = [(number, text) for text, number in pairs]
        self._allowance.tokens((text for _, text in new), len(new), name)
        tokens.update((number, text) for number, text in new if is_id(number))  # type: ignore[misc]


def _vocabulary_pairs(batch: Batch, start: int) -> Iterable[tuple[str, object]]:
    """Return each text with its id, from a map or from Unigram's list of [text, score] by index."""
    if isinstance(batch, Mapping):
        return batch.items()
    if any(not isinstance(entry, list) or not entry for entry in batch):
        raise UnreadableError("an entry of the vocabulary has no text", "", "tokenizer.vocabulary")
    return [(str(entry[0]), number) for number, entry in enumerate(batch, start)]  # type: ignore[index]


def _contents(batch: Batch) -> Iterator[tuple[str, object]]:
    """Yield the tokens of added_tokens in tokenizer.json: [{"id": …, "content": …}]."""
    for entry in batch if isinstance(batch, list) else ():
        if isinstance(entry, Mapping):
            yield str(entry.get("content")), entry.get("id")


def _decoded(batch: Batch) -> Iterator[tuple[str, object]]:
    for number, entry in batch.items() if isinstance(batch, Mapping) else ():
        if isinstance(entry, Mapping) and number.isdecimal() and len(number) <= 10:
            yield str(entry.get("content")), int(number)


def is_id(number: object) -> bool:
    """Return whether a value of JSON can be the id of a token."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _LARGEST
