"""Changes to a JSON text that leave every other character of it alone.

A config is somebody's file: its indentation, key order, number spellings and escapes stay. Only the
characters of a changed value, or of a new key's line, differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One ``key: value`` of an object, by character offsets."""

    key: str
    key_start: int
    value_start: int
    value_end: int


def set_value(text: str, path: Sequence[str], value: object) -> str:
    """``text`` with the value at ``path`` replaced, or added to its object.

    Every key of ``path`` but the last must name an object that exists; ``KeyError`` otherwise. Where a key
    is repeated the last one counts, as readers have it.
    """
    start = _object_at(text, path[:-1])
    encoded = json.dumps(value, ensure_ascii=True)
    try:
        entry = _find(text, start, path[-1])
    except KeyError:
        return _insert(text, start, path[-1], encoded)
    return text[: entry.value_start] + encoded + text[entry.value_end :]


def remove_key(text: str, path: Sequence[str]) -> str:
    """``text`` without the key at ``path`` and its comma; ``KeyError`` where it does not stand.

    Where the key is repeated all of them go: an earlier one would count again.
    """
    start = _object_at(text, path[:-1])
    entries = list(_entries(text, start))
    positions = [i for i, entry in enumerate(entries) if entry.key == path[-1]]
    if not positions:
        raise KeyError(path[-1])
    for position in reversed(positions):
        text = _without(text, start, entries, position)
        del entries[position]
    return text


def _without(text: str, start: int, entries: list[_Entry], position: int) -> str:
    """``text`` without one of an object's ``entries``; the offsets of those before it stay true."""
    entry = entries[position]
    following = _skip(text, entry.value_end)
    if text[following] == ",":
        return text[: entry.key_start] + text[_skip(text, following + 1) :]
    if position:
        return text[: entries[position - 1].value_end] + text[entry.value_end :]
    # An only key that follows its `{` directly may have been put into an empty object: its white space stays.
    return text[: start + 1] + text[entry.value_end if entry.key_start == start + 1 else following :]


def _object_at(text: str, path: Sequence[str]) -> int:
    start = _skip(text, 0)
    for key in path:
        start = _find(text, start, key).value_start
        if text[start] != "{":
            raise KeyError(key)
    return start


def _find(text: str, start: int, key: str) -> _Entry:
    matches = [entry for entry in _entries(text, start) if entry.key == key]
    if not matches:
        raise KeyError(key)
    return matches[-1]


def _entries(text: str, start: int) -> Iterator[_Entry]:
    """The entries of the object whose ``{`` stands at ``start`` (the text is known to parse)."""
    position = _skip(text, start + 1)
    while text[position] != "}":
        key_start = position
        key, position = scanstring(text, position + 1)
        value_start = _skip(text, _skip(text, position) + 1)
        _, value_end = _DECODER.raw_decode(text, value_start)
        yield _Entry(key, key_start, value_start, value_end)
        position = _skip(text, value_end)
        if text[position] == ",":
            position = _skip(text, position + 1)


def _insert(text: str, start: int, key: str, encoded: str) -> str:
    """A new key on a line like its neighbours': in its place where the keys are sorted, else last."""
    pair = f"{json.dumps(key)}: {encoded}"
    entries = list(_entries(text, start))
    if not entries:
        return f"{text[: start + 1]}{pair}{text[start + 1 :]}"
    gap = text[start + 1 : entries[0].key_start]
    keys = [entry.key for entry in entries]
    later = [entry for entry in entries if entry.key > key]
    if later and keys == sorted(keys):
        offset = later[0].key_start
        return f"{text[:offset]}{pair},{gap or ' '}{text[offset:]}"
    offset = entries[-1].value_end
    return f"{text[:offset]},{gap or ' '}{pair}{text[offset:]}"


def _skip(text: str, position: int) -> int:
    while text[position] in _SPACE:
        position += 1
    return position
