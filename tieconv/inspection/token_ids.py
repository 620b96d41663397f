"""The ids that a tokenizer of transformers may return for a text, which can be more than the files list.

A token that a config names, but no vocabulary has, gets an id from ``len(vocab)`` on. The id depends on the class and
the release, so every possible id counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from sys import getsizeof
from typing import NoReturn, cast

from tieconv.checkpoint.model_files import Files
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.directory import GENERATION, read_bytes
from tieconv.formats.json_text import BEHIND_NUMBERS, Items, Members, Pread
from tieconv.formats.limits import WINDOW
from tieconv.formats.strict_json import collector_paused, loads, refuse, value_cost
from tieconv.inspection.config_values import RELEASES, default_ids, levels, table, tokens_of_class
from tieconv.text import shown

_EXTRA = "extra_ids"
_MOST_EXTRA = 10_000

_HARMLESS = frozenset(
    {
        "added_tokens_decoder", "backend", "chat_template", "clean_up_tokenization_spaces", "do_lower_case", "errors",
        "files_loaded", "language", "max_input_chars_per_word", "max_len", "max_length", "model_input_names",
        "model_max_length", "name_or_path", "never_split", "pad_to_multiple_of", "pad_token_type_id", "padding",
        "padding_side", "response_schema", "response_template", "sep_style", "sp_model_kwargs",
        "special_tokens_map_file", "src_lang", "stride", "task", "tgt_lang", "tokenizer_class", "transformers_version",
        "truncation_side", "truncation_strategy", "_commit_hash", _EXTRA,
    }
)  # fmt: skip
"""Keys of tokenizer_config.json that add no token with any value. Boolean values add none either."""


@record
class TokenIds:
    """The ids of a tokenizer: ``listed`` have a token in the files, and ``spans`` may get one on loading.

    ``undecided`` says why more ids are possible; it is empty if these are all.
    """

    listed: frozenset[int]
    spans: tuple[range, ...]
    undecided: str


def token_ids(files: TokenizerFiles, config: Mapping[str, object]) -> TokenIds:
    """Return the ids that the tokenizer of a model may return in the releases of `measured_releases`."""
    vocabularies, added = files.vocabularies, files.added
    listed = frozenset(added).union(*vocabularies) | frozenset(_referred(files.document(TOKENIZER)))
    undecided = next(_undecided(files, config), "")
    texts = set(added.values()).union(*(vocabulary.values() for vocabulary in vocabularies))
    of_classes = {token for name in _class_names(files, config) for token in tokens_of_class(name) or ()}
    new = {*named(files), *of_classes} - texts
    if not vocabularies:
        return TokenIds(listed, (), undecided or "no vocabulary was read")
    start = min(map(len, vocabularies))
    count = len(added) + max(map(len, vocabularies))
    stop = max(max(listed, default=-1) + 1, count) + len(new)
    # Adding tokens again could change ids if there is a gap above a vocabulary, or there are several.
    gap = new or len(vocabularies) > 1 or max(listed) + 1 - start != sum(number >= start for number in listed)
    return TokenIds(listed, (range(start, stop),) if gap else (), undecided)


def named(files: TokenizerFiles) -> set[str]:
    """Return the tokens that tokenizer_config.json and special_tokens_map.json name."""
    config = files.document(CONFIG)
    entries = [value for key, value in config.items() if key.endswith(("_token", "_tokens"))]
    texts = {text for value in (*entries, *files.document(SPECIAL).values()) for text in _texts(value)}
    extra = config.get(_EXTRA)
    if isinstance(extra, int) and extra <= _MOST_EXTRA:
        texts |= {f"<extra_id_{number}>" for number in range(extra)}
    return texts


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        content = value.get("content")
        if isinstance(content, str):
            yield content
        else:
            for entry in value.values():
                yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _referred(document: Mapping[str, object]) -> Iterator[int]:
    """Yield the numbers of tokenizer.json outside its vocabulary that may be ids: of templates and of padding."""
    for key in ("post_processor", "padding"):
        yield from _numbers(document.get(key))


def _numbers(value: object) -> Iterator[int]:
    if is_id(value):
        yield value  # type: ignore[misc]
    elif isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(entry)


def _class_names(files: TokenizerFiles, config: Mapping[str, object]) -> set[str]:
    """Return the classes that may load the files: the named ones, those of the model type, or both."""
    class_names = (files.document(CONFIG).get("tokenizer_class"), config.get("tokenizer_class"))
    names, model_type = {name for name in class_names if isinstance(name, str)}, str(config.get("model_type"))
    # Some releases use the default tokenizer class of a model type and ignore the named class.
    if names and not any(model_type in table(release)["overridden"] for release in RELEASES):
        return names
    return names | {name for release in RELEASES for name in table(release)["tokenizer_of"].get(model_type, ())}


def too_large(files: TokenizerFiles) -> Iterator[str]:
    """Yield a clause for each file that was not read because of its size."""
    for name in files.too_large:
        yield f"{name} is larger than tieconv reads"


def _undecided(files: TokenizerFiles, config: Mapping[str, object]) -> Iterator[str]:
    """Yield the reasons why not all ids are known, the most important first."""
    yield from too_large(files)
    for name in files.broken:
        yield f"{name} could not be read"
    for name in files.unread:
        yield f"tieconv does not read {shown(name)}"
    for name in files.processors:
        yield f"the processor of {name} may add tokens"
    settings = files.document(CONFIG)
    if "auto_map" in settings:
        yield "the tokenizer is remote code (auto_map)"
    if "processor_class" in settings:
        yield f"the processor that {CONFIG} names may add tokens"
    if files.odd_vocabulary:
        yield f"{VOCABULARY} is not a map of tokens to ids"
    if TOKENIZER in files.documents and not files.model:
        yield f"{TOKENIZER} has no vocabulary that tieconv reads"
    for key, value in settings.items():
        if key not in _HARMLESS and not key.endswith(("_token", "_tokens")) and not isinstance(value, bool | None):
            yield f"the key {shown(key)} of {CONFIG} is unknown"
    extra = settings.get(_EXTRA)
    if extra is not None and not (isinstance(extra, int) and extra <= _MOST_EXTRA):
        yield f"the key {_EXTRA} of {CONFIG} is not a number of tokens"
    names = _class_names(files, config)
    if not names:
        yield "no file names the class of the tokenizer"
    for name in sorted(names):
        if tokens_of_class(name) is None:
            yield f"the tokens that the class {shown(name)} adds by itself were not measured"


# The token ids that a model reads with every text: decoder start, padding and image placeholders.

_KEYS = ("_token_id", "_token_ids", "_token_index", "_decoder_ids", "_to_id")
"""The endings of config keys that name an id."""
_SAMPLED_KEYS = (*_KEYS, "suppress_tokens", "bad_words_ids", "force_words_ids", "sequence_bias")
"""Those, and the keys of ids that generation excludes or prefers."""


def fed_ids(config: Mapping[str, object], generation: Mapping[str, object], rows: int) -> set[int]:
    """Return the ids below ``rows`` that the configs name, and the default ids of the classes."""
    ids = {number for document in (config, generation) for _key, number in _named(document, _KEYS) if number < rows}
    for model_type in _model_types(config):
        ids |= default_ids(model_type)
    return ids


def needed_ids(config: Mapping[str, object], generation: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """Yield each id that a config needs a row for, after the file and the key.

    The defaults of the class count only if config.json names no id. The table does not say which key each is for.
    """
    for name, document in (("config.json", config), (GENERATION, generation)):
        for key, number in _named(document, _SAMPLED_KEYS):
            yield f"{shown(key)} in {name}", number
    for model_type in () if any(_named(config, _KEYS)) else _model_types(config):
        for number in default_ids(model_type):
            yield f"a default of model_type {shown(model_type)}", number


def _named(document: Mapping[str, object], endings: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield each integer below a key with one of ``endings``, after that key.

    A stack is faster than nested generators.
    """
    left: list[tuple[str, object]] = [("", document)]
    while left:
        named, value = left.pop()
        entries = value.items() if isinstance(value, Mapping) else (("", entry) for entry in value)  # type: ignore[attr-defined]
        for key, entry in entries:
            below = named or (key if key.endswith(endings) else "")
            if isinstance(entry, Mapping | list):
                left.append((below, entry))
            elif below and isinstance(entry, int) and not isinstance(entry, bool):
                yield below, entry


def _model_types(document: Mapping[str, object]) -> Iterator[str]:
    return (kind for level in levels(document) if isinstance(kind := level.get("model_type"), str))


# Read the files of a tokenizer next to the weights, and their tokens by id.

LIMIT = 100_000_000
"""Bytes of one file. The largest published files have 40 MB."""

_LARGEST = 1 << 31

TOKENIZER, VOCABULARY, WORDS = "tokenizer.json", "vocab.json", "vocab.txt"
ADDED, CONFIG, SPECIAL = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"

WITH_ADDED = (TOKENIZER, ADDED, CONFIG)
"""The files that list added tokens."""

_UNREAD = ("*.model", "*.spm", "*.tiktoken", "*.codes", "*.vocab", "tekken.json", "dict.txt", "vocab-*.json",
           "tokenizer.*.json", "emoji.json", "entity_vocab.json", "word_shape.json",
           "word_pronunciation.json")  # fmt: skip
"""Vocabularies of other formats."""

PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


@dataclass
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
    broken: list[str] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    processors: list[str] = field(default_factory=list)

    def document(self, name: str) -> Mapping[str, object]:
        """Return a file's content, empty for an absent file."""
        return self.documents.get(name, {})

    @property
    def vocabularies(self) -> tuple[dict[int, str], ...]:
        """Every vocabulary that a class may load, each without its added tokens."""
        return tuple(vocabulary for vocabulary in (self.model, self.vocabulary, self.words) if vocabulary)


def read_files(files: Files, names: Mapping[str, int], *, vocabulary: bool = True) -> TokenizerFiles:
    """Read the tokenizer's files among ``names``. Malformed and too large files raise no error.

    Without ``vocabulary``, tokenizer.json is read up to its vocabulary: tokenizers writes the added tokens before it.
    """
    top = sorted(name for name in names if "/" not in name)
    reader = _Reader(files, vocabulary)
    content = reader.content
    for name, read in reader.readers.items():
        if name in names:
            try:
                read(name)
            except UnreadableError as error:
                (content.too_large if error.code == "json.too-large" else content.broken).append(name)
    content.unread += (name for name in top if any(fnmatchcase(name, pattern) for pattern in _UNREAD))
    content.processors += filter(names.__contains__, PROCESSORS)
    return content


_TAIL = 4096
"""Bytes at the end of a document. No known writer appends so much white space."""


def cut_off(files: Files, names: Mapping[str, int]) -> Iterator[str]:
    """Yield the documents beside the weights that are empty, or end with no closing bracket. Reads their last bytes."""
    for name in (TOKENIZER, VOCABULARY, ADDED, CONFIG, SPECIAL, GENERATION, *PROCESSORS):
        with suppress(UnreadableError):  # `special_files` reports what cannot be opened
            size = files.state(name).size if name in names else None
            if size is not None and not files.pread(name, _TAIL, max(size - _TAIL, 0)).rstrip().endswith((b"}", b"]")):
                yield name


_MEDIA = re.compile("(image|audio|video|boi|eoi|boa|eoa)_token")


_NUMBERED, _SCORED, _LINE = re.compile(rb'":\s*(\d{1,10})'), re.compile(rb'",\s*-?\d'), re.compile(rb"[^\n]+")
"""What looks like an id in a map, like a score in a list of Unigram, and like a word."""


def needed_rows(files: Files, names: Mapping[str, int], rows: int) -> int:
    """Return the rows that the listed tokens need, without those of images and sounds; 0 if none are listed.

    The vocabulary is read only if a number in it looks like an id without a row. A search for numbers is ten times
    faster. Text models of Gemma 3 have a token for images without a row.
    """
    base = next(filter(names.__contains__, (TOKENIZER, VOCABULARY, WORDS)), "")
    whole = bool(base) and _highest_number(files, base) >= rows
    wanted = {*WITH_ADDED, base} if whole else WITH_ADDED
    content = read_files(files, {name: names[name] for name in wanted if name in names}, vocabulary=whole)
    document = content.document(CONFIG)
    extra = document.get("extra_special_tokens")
    levels = (document, extra if isinstance(extra, Mapping) else {})
    named = (value for level in levels for key, value in level.items() if _MEDIA.fullmatch(key))
    media = {str(value.get("content") if isinstance(value, Mapping) else value) for value in named}
    tokens = (item for listed in (content.added, *content.vocabularies) for item in listed.items())
    return max((number + 1 for number, text in tokens if text not in media), default=0)


def _highest_number(files: Files, name: str) -> int:
    """Return the highest number in a vocabulary that may be an id."""
    highest = entries = 0
    with suppress(UnreadableError):  # `read_files` names such a file
        for offset in range(0, min(files.state(name).size, LIMIT), _BLOCK):
            data = files.pread(name, _BLOCK + _KEY, offset)
            highest = max(highest, *map(int, _NUMBERED.findall(data)), 0)
            entries += len((_LINE if name == WORDS else _SCORED).findall(data))
    return max(highest, entries - 1)


class _Reader:
    """Reads each file into ``content``. The methods raise `UnreadableError`."""

    def __init__(self, files: Files, vocabulary: bool) -> None:
        self._files, self._vocabulary_too = files, vocabulary
        self._allowance, self.content = Allowance(), TokenizerFiles()
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

        def take(batch: Batch) -> None:
            if not self._vocabulary_too:
                refuse(name, "its vocabulary is not read", "tokenizer.vocabulary")
            self._take(name, model, _vocabulary_pairs(batch, len(model)))

        self.content.documents[name] = self._large(name).document(
            {
                ("model", "vocab"): take,
                ("model", "merges"): lambda batch: self._allowance.merges(len(batch), name),
                ("added_tokens",): lambda batch: self._take(name, self.content.added, _contents(batch)),
            }
        )
        self.content.model = model

    def _vocabulary(self, name: str) -> None:
        vocabulary: dict[int, str] = {}

        def take(batch: Mapping[str, object]) -> None:
            self._take(name, vocabulary, batch.items())
            self.content.odd_vocabulary |= any(not isinstance(number, int) for number in batch.values())

        self._large(name).members(take)
        self.content.vocabulary = vocabulary

    def _added(self, name: str) -> None:
        self._large(name).members(lambda batch: self._take(name, self.content.added, batch.items()))

    def _config(self, name: str) -> None:
        """Read the tokens that transformers also adds on loading: {id as text: {"content": …}}."""
        self.content.documents[name] = self._large(name).document(
            {("added_tokens_decoder",): lambda batch: self._take(name, self.content.added, _decoded(batch))}
        )

    def _special(self, name: str) -> None:
        self.content.documents[name] = self._large(name).document({})

    def _words(self, name: str) -> None:
        """Read a text with one token on each line."""
        data = read_bytes(self._files, name, MAX_SETTINGS)
        count = data.removesuffix(b"\n").count(b"\n") + 1
        if len(data) > MAX_SETTINGS:
            raise too_large_error(name)
        self._allowance.tokens((), count, name)
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise UnreadableError(f"{name} is not UTF-8 text, or is empty", "", "tokenizer.words")
        self.content.words = {number: line.rstrip("\r") for number, line in enumerate(text.split("\n"))}

    def _large(self, name: str) -> LargeJson:
        size = self._files.state(name).size
        if size > LIMIT:
            raise too_large_error(name)
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


Batch = Mapping[str, object] | list[object]
"""Some members of an object, or some items of a list."""
Take = Callable[[Batch], None]
"""The function that gets each batch. It raises `UnreadableError` to stop."""
Paths = Mapping[tuple[str, ...], Take]
"""The function of each member that is read in batches, by the keys from the top."""

DIGITS = 31
"""The most digits of an integer. transformers writes 10³⁰ for a length without a limit."""
_BLOCK = 8 << 20
_KEY = 128
"""Bytes of the longest key with its colon and white space. A member after more white space is read with the rest."""
_ITEMS = {
    ord(first): re.compile(rb"(?<=[%b])[ \t\n\r]*,[ \t\n\r]*(?=[%b])" % (closing, re.escape(first)))
    for first, closing in ((b"[", rb"\]"), (b"{", rb"\}"), (b'"', rb'"'))
}
"""The likely separator of items by their first byte."""


class LargeJson:
    """One file, read once from its start to its end. Raises `UnreadableError`."""

    def __init__(self, files: Files, name: str, size: int, allowance: Allowance) -> None:
        self._pread = _ahead(files, name)
        self._name, self._size, self._allowance = name, size, allowance

    def members(self, take: Callable[[Mapping[str, object]], None]) -> None:
        """Give the members of the whole file to ``take``."""
        start = re.match(rb"[ \t\n\r]*\{", self._pread(_KEY, 0))
        if start is None:
            loads(self._pread(_KEY, 0), self._name, limit=_KEY)  # raises an error that names the type
            refuse(self._name, "it does not start with an object", "json.malformed")
        self._batches(Members, start.end() - 1, BEHIND_NUMBERS, take).finish()

    def document(self, paths: Paths) -> dict[str, object]:
        """Give the members of ``paths`` to their functions, and return the rest with 0 instead of these members."""
        with collector_paused():
            text, taken = self._rest(paths)
            self._allowance.settings(text, self._name)
            value = loads(text, self._name, limit=len(text), lenient=True, digits=DIGITS)
            for path, take in paths.items():
                self._check(value, path, path in taken, take)
        return value

    def _rest(self, paths: Paths) -> tuple[bytes, list[tuple[str, ...]]]:
        """Return the text with 0 for each member that its function got, and the paths of these members."""
        by_key = {path[-1].encode(): path for path in paths}
        pattern = re.compile(rb'"(%b)"\s*:\s*([\[{])\s*(.)?' % b"|".join(by_key), re.DOTALL) if paths else None
        rest, position, taken = bytearray(), 0, []
        while data := self._pread(min(WINDOW, self._size - position), position):
            match = pattern.search(data) if pattern else None
            at_end = position + len(data) >= self._size or len(data) < WINDOW
            end = match.start() if match else len(data) if at_end else len(data) - _KEY
            rest += data[:end]
            self._allowance.size(len(rest), self._name)
            position += end
            if match:
                rest += b'"%b":0' % match[1]
                path = by_key[match[1]]
                if path in taken:
                    self._refuse_member(path)
                taken.append(path)
                position = self._part(match, position, paths[path])
        return bytes(rest), taken

    def _part(self, match: re.Match[bytes], position: int, take: Take) -> int:
        """Read one member in batches; its key is at ``position``. Return where it ends."""
        start = position + match.start(2) - match.start()
        if match[2] == b"{":
            return self._batches(Members, start, BEHIND_NUMBERS, take).position
        separator = _ITEMS.get((match[3] or b'"')[0], _ITEMS[ord('"')])
        return self._batches(Items, start, separator, lambda batch: take(cast("list[object]", batch[""]))).position

    def _batches(
        self,
        kind: type[Members],
        start: int,
        separator: re.Pattern[bytes],
        take: Callable[[Mapping[str, object]], None],
    ) -> Members:
        members = kind(self._pread, start, self._size, self._name, separator, digits=DIGITS, lenient=True)
        for batch in members.batches():
            take(batch)
        return members

    def _check(self, value: object, path: tuple[str, ...], taken: bool, take: Take) -> None:
        """Refuse a member at another place. Give a member that the search missed to its function."""
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if taken and value != 0:
            self._refuse_member(path)
        if isinstance(value, Mapping | list):
            take(value)

    def _refuse_member(self, path: tuple[str, ...]) -> NoReturn:
        refuse(self._name, f"its key {path[-1]} occurs twice, or inside another value", "json.refused")


def _ahead(files: Files, name: str) -> Pread:
    """Read blocks of 8 MiB, because each read of a file on the Hub is a request."""
    held, at = b"", 0

    def pread(size: int, offset: int) -> bytes:
        nonlocal held, at
        if not at <= offset <= offset + size <= at + len(held):
            held, at = files.pread(name, max(size, _BLOCK), offset), offset
        return held[offset - at : offset - at + size]

    return pread


# Limit the memory for the files of one tokenizer, counted before it is used.

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
    """The memory that the files of one tokenizer may still use. Each method raises the error of `too_large_error`."""

    def __init__(self) -> None:
        self._tokens, self._text, self._merges = MAX_TOKENS, MAX_TEXT, MAX_MERGES
        self._settings, self._values = MAX_SETTINGS, MAX_VALUES

    def tokens(self, texts: Iterable[str], count: int, name: str) -> None:
        """Take ``count`` tokens with these texts."""
        self._tokens -= count
        if self._tokens >= 0:
            self._text -= sum(map(getsizeof, texts))
        if self._tokens < 0 or self._text < 0:
            raise too_large_error(name)

    def merges(self, count: int, name: str) -> None:
        """Take ``count`` merges."""
        self._merges -= count
        if self._merges < 0:
            raise too_large_error(name)

    def size(self, size: int, name: str) -> None:
        """Refuse a text of ``size`` bytes that is no longer allowed."""
        if size > self._settings:
            raise too_large_error(name)

    def settings(self, data: bytes, name: str) -> None:
        """Take the values of a text."""
        self.size(len(data), name)
        self._settings -= len(data)
        self._values -= value_cost(data)
        if self._values < 0:
            raise too_large_error(name)


def too_large_error(name: str) -> UnreadableError:
    """Return the error for a file that exceeds a limit."""
    problem = f"{shown(name)} is larger than tieconv reads"
    return UnreadableError(problem, "docs/formats.md has the limits", "json.too-large")
