"""Read a large JSON file in which a few members are large: these in batches, the rest as one document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn, cast

from tieconv.analysis.certificate.allowance import Allowance
from tieconv.checkpoint.files.interface import Files
from tieconv.formats.json.members import BEHIND_NUMBERS, Items, Members, Pread
from tieconv.formats.json.strict import collector_paused, loads, refuse
from tieconv.formats.limits import WINDOW

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
    ord(first): re.compile(rb"(?<=[%b])\s*,\s*(?=[%b])" % (closing, re.escape(first)))
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
        start = re.match(rb"\s*\{", self._pread(_KEY, 0))
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
