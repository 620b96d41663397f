"""The ids that a tokenizer of transformers may return for a text, which can be more than the files list.

A token that a config names, but no vocabulary has, gets an id from ``len(vocab)`` on. The id depends on the class and
the release, so every possible id counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.analysis.certificate.measured_releases import (
    passes_over_named_class,
    tokenizer_classes,
    tokens_of_class,
)
from tieconv.analysis.certificate.tokenizer_files import CONFIG, SPECIAL, TOKENIZER, VOCABULARY, TokenizerFiles, is_id
from tieconv.checkpoint.value_type import record
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
    new = {*named(files), *_of_classes(files, config)} - texts
    if not vocabularies:
        return TokenIds(listed, (), undecided or "no vocabulary was read")
    start = min(map(len, vocabularies))
    count = len(added) + max(map(len, vocabularies))
    stop = max(max(listed, default=-1) + 1, count) + len(new)
    return TokenIds(listed, (range(start, stop),) if new or _moves(listed, start, vocabularies) else (), undecided)


def _moves(listed: frozenset[int], start: int, vocabularies: tuple[dict[int, str], ...]) -> bool:
    """Return whether adding tokens again could change ids: there is a gap above a vocabulary, or there are several."""
    return len(vocabularies) > 1 or max(listed) + 1 - start != sum(number >= start for number in listed)


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
    if names and not passes_over_named_class(model_type):
        return names
    return names | tokenizer_classes(model_type)


def _of_classes(files: TokenizerFiles, config: Mapping[str, object]) -> set[str]:
    return {token for name in _class_names(files, config) for token in tokens_of_class(name) or ()}


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
