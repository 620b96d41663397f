"""Walk and edit JSON text without a change of any other character."""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import cast

from tieconv.errors import UnreadableError
from tieconv.formats.limits import WINDOW
from tieconv.formats.strict_json import MAX_INTEGER_DIGITS, check_part, loads, refuse

# Read the members of a large JSON object, or the items of a list, in batches that save memory.
#
# A header of half a million tensors has 55 MB. Parsed at once, it becomes a dictionary of 300 MB. This module parses
# one window of the text at a time, under the rules of `tieconv.formats.strict_json`. A batch that is cut in the wrong
# position ends inside a string or a bracket. Such a batch is not valid JSON, so it is never accepted.

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset``."""
LARGEST_MEMBER = 16_000_000
"""The most bytes of one key and its value."""
BEHIND_OBJECTS = re.compile(rb'(?<=\})[ \t\n\r]*,[ \t\n\r]*(?=")')
BEHIND_STRINGS = re.compile(rb'(?<=")[ \t\n\r]*,[ \t\n\r]*(?=")')
"""The likely separators between members whose values are objects, and between members with string values."""
BEHIND_NUMBERS = re.compile(rb'(?<=[\d}])[ \t\n\r]*,[ \t\n\r]*(?=")')
"""The likely separator between members whose values are numbers or objects."""
_SEARCHED = 4096
_SPACE = re.compile(r"[ \t\n\r]*")
_LONGEST_TOKEN = 16
_scan_once = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_Cut = tuple[int, int, bool]
"""Bytes of whole members, bytes up to the next member, and whether the object ends before it."""


class Members:
    """Reads the members of one object, whose `{` is at byte ``position`` of a text that ends at ``end``.

    ``position`` moves to the end of each batch, and finally behind the `}`.
    """

    def __init__(
        self,
        pread: Pread,
        position: int,
        end: int,
        name: str,
        separator: re.Pattern[bytes] = BEHIND_OBJECTS,
        *,
        digits: int = MAX_INTEGER_DIGITS,
        lenient: bool = False,
    ) -> None:
        self._pread, self.position, self._end = pread, position + 1, end
        self._name, self._separator, self._digits, self._lenient = name, separator, digits, lenient

    def batches(self) -> Iterator[dict[str, object]]:
        """Yield the members in batches, each as `strict.loads` returns it. Two batches may hold the same key.

        Raises `UnreadableError`.
        """
        closed = False
        while not closed:
            data = self._read(WINDOW)
            batch = self._likely_batch(data)
            if batch is None:
                batch, closed = self._searched_batch(data)
            yield batch

    def finish(self) -> None:
        """Refuse any character but white space between ``position`` and the end."""
        while self.position < self._end:
            data = self._read(WINDOW)
            if data.strip(b" \t\n\r"):
                refuse(self._name, f"byte {self.position}: Extra data", "json.malformed")
            self.position += len(data)

    def _likely_batch(self, data: bytes) -> dict[str, object] | None:
        """Return the members of a window up to its last likely separator, or ``None`` if that is not valid JSON."""
        separators = list(self._separator.finditer(data, max(len(data) - _SEARCHED, 0)))
        if not separators:
            return None
        try:
            batch = self._loads(data[: separators[-1].start()])
        except UnreadableError:
            return None
        self.position += separators[-1].end()
        return batch

    def _searched_batch(self, data: bytes) -> tuple[dict[str, object], bool]:
        """Return the complete members of a window, at least one, and whether the object ends behind them."""
        size = WINDOW
        while True:
            check_part(data, self._name)
            cut, follow, closed = self._cut(data)
            if cut or closed:
                batch = self._loads(data[:cut])
                self.position += follow
                return batch, closed
            if size >= LARGEST_MEMBER:
                refuse(self._name, f"one entry has more than {LARGEST_MEMBER:,} bytes", "json.too-large")
            size = min(size * 4, LARGEST_MEMBER)
            data = self._read(size)

    def _cut(self, data: bytes) -> _Cut:
        final = self.position + len(data) >= self._end
        try:
            text, _ = utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            refuse(self._name, f"byte {self.position + error.start} is not UTF-8", "json.not-utf8")
        try:
            cut, follow, closed = self._whole(text, final=final)
        except ValueError as error:
            if not isinstance(error, json.JSONDecodeError):
                refuse(self._name, "it holds an integer of thousands of digits", "json.refused")
            offset = self.position + _bytes(text, error.pos)
            refuse(self._name, f"byte {offset}: {error.msg}", "json.malformed")
        return _bytes(text, cut), _bytes(text, follow), closed

    def _loads(self, members: bytes) -> dict[str, object]:
        return self._parsed(b"{%b}" % members)

    def _parsed(self, text: bytes) -> dict[str, object]:
        return loads(text, self._name, limit=LARGEST_MEMBER + WINDOW, digits=self._digits, lenient=self._lenient)

    def _whole(self, text: str, *, final: bool) -> _Cut:
        return _whole_parts(text, _behind_member, "}", '"', final=final)

    def _read(self, size: int) -> bytes:
        return self._pread(min(size, self._end - self.position), self.position)


class Items(Members):
    """Reads the items of one list, whose `[` is at byte ``position``. Each batch is ``{"": [items]}``."""

    def _loads(self, members: bytes) -> dict[str, object]:
        # With two brackets, no member can follow an early end of the list.
        (items,) = cast("list[object]", self._parsed(b'{"":[[%b]]}' % members)[""])
        return {"": items}

    def _whole(self, text: str, *, final: bool) -> _Cut:
        return _whole_parts(text, _behind_value, "]", "", final=final)


def _whole_parts(text: str, behind: Callable[[str, int], int], closing: str, opening: str, *, final: bool) -> _Cut:
    """Return where the last complete member or item of ``text`` ends, in characters.

    ``behind`` returns the end of one member. Each starts with ``opening``, and ``closing`` ends the object or list.
    The text may end anywhere unless it is ``final``.
    Raises `json.JSONDecodeError` for what is not JSON.
    """
    whole, position = (0, 0), _skip(text, 0)
    try:
        while text[position] != closing:
            cut = behind(text, position)
            position = _skip(text, cut)
            if text[position] == closing:
                whole = cut, cut
                break
            _expect(text, position, ",")
            position = _skip(text, position + 1)
            _expect(text, position, opening or text[position])
            if text[position] == closing:
                raise json.JSONDecodeError("Expecting value", text, position)
            whole = cut, position
    except (IndexError, StopIteration, json.JSONDecodeError) as error:
        message, offset = _fault(error, text)
        if final or (offset < len(text) - _LONGEST_TOKEN and not message.startswith("Unterminated string")):
            raise json.JSONDecodeError(message, text, offset) from None
        return *whole, False
    return whole[0], position + 1, True


def _behind_member(text: str, position: int) -> int:
    _expect(text, position, '"')
    _, position = scanstring(text, position + 1)
    position = _skip(text, position)
    _expect(text, position, ":")
    return _behind_value(text, _skip(text, position + 1))


def _behind_value(text: str, position: int) -> int:
    _, position = _scan_once(text, position)
    return int(position)


def _expect(text: str, position: int, character: str) -> None:
    if text[position] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, position)


def _fault(error: Exception, text: str) -> tuple[str, int]:
    """Return the message and the offset of a parser's error. Keeping the exception would keep the text in memory."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.pos
    return "Expecting value", error.value if isinstance(error, StopIteration) else len(text)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _bytes(text: str, position: int) -> int:
    return position if text.isascii() else len(text[:position].encode("utf-8", "surrogatepass"))


# Edit a JSON text without changing any other character.
#
# Indentation, key order, number spellings and escapes stay. Only a changed value, or the line of a new key, differs.

_DECODER = json.JSONDecoder()


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
        # Insert a key on a line formatted like its neighbours: sorted if the keys are sorted, else last.
        key = path[-1]
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
        branch[path[-1]] = (path, value)
    absent: list[_Leaf] = []
    done, parts = 0, list[str]()
    for start, end, encoded in sorted(_replacements(text, _skip(text, 0), tree, absent)):
        parts += text[done:start], encoded
        done = end
    text = "".join((*parts, text[done:]))
    for path, value in absent:
        text = set_value(text, path, value)
    return text


_Leaf = tuple[Sequence[str], object]
"""The path of a value to set, and the value."""
_Tree = dict[str, "_Tree | _Leaf"]


def _replacements(text: str, start: int, tree: _Tree, absent: list[_Leaf]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, new text) for each value of ``tree`` that the object at ``start`` holds."""
    entries = {entry.key: entry for entry in _entries(text, start) if entry.key in tree}
    for key, branch in tree.items():
        entry = entries.get(key)
        if isinstance(branch, tuple):
            if entry is None:
                absent.append(branch)
            else:
                yield entry.value_start, entry.value_end, json.dumps(branch[1], ensure_ascii=True)
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
