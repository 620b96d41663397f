"""Edit a JSON text without changing any other character.

Indentation, key order, number spellings and escapes stay. Only a changed value, or the line of a new key, differs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]

from tieconv.checkpoint.value_type import record

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
    """Return ``text`` with the value at ``path`` replaced, or added to its object.

    Raises ``KeyError`` unless every key of ``path`` but the last names an existing object. If a key is repeated, the
    last one counts, as in Python's parser.
    """
    start = _object_at(text, path[:-1])
    encoded = json.dumps(value, ensure_ascii=True)
    try:
        entry = _find(text, start, path[-1])
    except KeyError:
        return _insert(text, start, path[-1], encoded)
    return text[: entry.value_start] + encoded + text[entry.value_end :]


def set_values(text: str, changes: Sequence[tuple[Sequence[str], object]]) -> str:
    """Set several values as `set_value` does, in one pass over the text."""
    tree: _Tree = {}
    for path, value in changes:
        branch = tree
        for key in path[:-1]:
            child = branch.setdefault(key, {})
            if not isinstance(child, dict):
                raise KeyError(key)
            branch = child
        branch[path[-1]] = _Leaf(path, value)
    absent: list[_Leaf] = []
    done, parts = 0, list[str]()
    for start, end, encoded in sorted(_replacements(text, _skip(text, 0), tree, absent)):
        parts += text[done:start], encoded
        done = end
    text = "".join((*parts, text[done:]))
    for leaf in absent:
        text = set_value(text, leaf.path, leaf.value)
    return text


@record
class _Leaf:
    """A value to set."""

    path: Sequence[str]
    value: object


_Tree = dict[str, "_Tree | _Leaf"]


def _replacements(text: str, start: int, tree: _Tree, absent: list[_Leaf]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, new text) for each value of ``tree`` that the object at ``start`` holds."""
    entries = {entry.key: entry for entry in _entries(text, start) if entry.key in tree}
    for key, branch in tree.items():
        entry = entries.get(key)
        if isinstance(branch, _Leaf):
            if entry is None:
                absent.append(branch)
            else:
                yield entry.value_start, entry.value_end, json.dumps(branch.value, ensure_ascii=True)
        elif entry is None or text[entry.value_start] != "{":
            raise KeyError(key)
        else:
            yield from _replacements(text, entry.value_start, branch, absent)


def remove_keys(text: str, path: Sequence[str], keys: Collection[str]) -> str:
    """Return ``text`` without ``keys`` of the object at ``path``, and without their commas.

    Removes every copy of a repeated key. Raises ``KeyError`` if a key is missing.
    """
    start = _object_at(text, path)
    entries = list(_entries(text, start))
    for key in set(keys).difference(entry.key for entry in entries):
        raise KeyError(key)
    remaining = [position for position, entry in enumerate(entries) if entry.key not in keys]
    if len(remaining) == len(entries):
        return text
    end = entries[-1].value_end
    if not remaining:
        # If the keys follow `{` directly, they may have been added to an empty object. Its white space stays.
        return text[: start + 1] + text[end if entries[0].key_start == start + 1 else _skip(text, end) :]
    done, parts = 0, list[str]()
    for position in range(remaining[-1]):
        if entries[position].key in keys:
            parts.append(text[done : entries[position].key_start])
            done = entries[position + 1].key_start
    return "".join((*parts, text[done : entries[remaining[-1]].value_end], text[end:]))


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
    """Yield the entries of the object whose ``{`` is at ``start``. The text must be valid JSON."""
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
    """Insert a key on a line formatted like its neighbours: sorted if the keys are sorted, else last."""
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
