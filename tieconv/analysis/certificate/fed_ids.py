"""The token ids that a model reads with every text: decoder start, padding and image placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.analysis.certificate.measured_releases import default_ids
from tieconv.checkpoint.files.interface import Files
from tieconv.errors import UnreadableError
from tieconv.formats.documents import read_bytes
from tieconv.formats.json.strict import loads

GENERATION = "generation_config.json"
_LIMIT = 1_000_000
"""Bytes of that file. The largest published files list some hundred ids."""
_KEYS = ("_token_id", "_token_ids", "_token_index", "_decoder_ids", "_to_id")
"""The endings of config keys that name an id."""


def fed_ids(config: Mapping[str, object], generation: Mapping[str, object], rows: int) -> set[int]:
    """Return the ids below ``rows`` that the configs name, and the default ids of the classes."""
    ids = {number for document in (config, generation) for number in _named(document) if number < rows}
    for model_type in _model_types(config):
        ids |= default_ids(model_type)
    return ids


def read_generation(files: Files, names: Mapping[str, int]) -> tuple[Mapping[str, object], str]:
    """Return the generation config, or an empty one, and why tieconv could not read it."""
    if GENERATION not in names:
        return {}, ""
    try:
        return loads(read_bytes(files, GENERATION, _LIMIT), GENERATION, limit=_LIMIT, lenient=True), ""
    except UnreadableError as error:
        large = error.code == "json.too-large"
        return {}, f"{GENERATION} {'is larger than tieconv reads' if large else 'could not be read'}"


def _named(document: Mapping[str, object]) -> Iterator[int]:
    """Yield each integer below a key of `_KEYS`. A stack is faster than nested generators."""
    left: list[tuple[bool, object]] = [(False, document)]
    while left:
        named, value = left.pop()
        entries = value.items() if isinstance(value, Mapping) else (("", entry) for entry in value)  # type: ignore[attr-defined]
        for key, entry in entries:
            below = named or key.endswith(_KEYS)
            if isinstance(entry, Mapping | list):
                left.append((below, entry))
            elif below and isinstance(entry, int) and not isinstance(entry, bool):
                yield entry


def _model_types(document: Mapping[str, object]) -> Iterator[str]:
    left: list[Mapping[str, object]] = [document]
    while left:
        value = left.pop()
        if isinstance(value.get("model_type"), str):
            yield str(value["model_type"])
        left += [entry for entry in value.values() if isinstance(entry, Mapping)]
