"""The token ids that a model reads whatever the text: what a decoder starts with, padding, the place of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.analysis.certificate.measured_releases import default_ids
from tieconv.checkpoint.records import Files
from tieconv.errors import UnreadableError
from tieconv.formats.documents import read_bytes
from tieconv.formats.strict_json import loads

GENERATION = "generation_config.json"
_LIMIT = 16_000_000
_KEYS = ("_token_id", "_token_ids", "_token_index", "_decoder_ids", "_to_id")
"""How the keys of a config end that name an id."""


def fed_ids(config: Mapping[str, object], generation: Mapping[str, object]) -> set[int]:
    """The ids that ``config`` and ``generation`` name, and those of the classes where a key may be left out."""
    found = set(_named(config)) | set(_named(generation))
    for model_type in _model_types(config):
        found |= default_ids(model_type)
    return found


def read_generation(files: Files, names: Mapping[str, int]) -> Mapping[str, object] | None:
    """The generation config; empty where there is none, ``None`` where it cannot be read."""
    if GENERATION not in names:
        return {}
    try:
        return loads(read_bytes(files, GENERATION, _LIMIT), GENERATION, limit=_LIMIT, lenient=True)
    except UnreadableError:
        return None


def _named(value: object, key: str = "") -> Iterator[int]:
    if isinstance(value, Mapping):
        for inner, entry in value.items():
            yield from _named(entry, key if key.endswith(_KEYS) else str(inner))
    elif isinstance(value, list):
        for entry in value:
            yield from _named(entry, key)
    elif isinstance(value, int) and not isinstance(value, bool) and key.endswith(_KEYS):
        yield value


def _model_types(value: object) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    if isinstance(value.get("model_type"), str):
        yield str(value["model_type"])
    for entry in value.values():
        yield from _model_types(entry)
