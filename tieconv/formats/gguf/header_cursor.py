"""Read a GGUF header front to back; nothing is allocated by a number that the file states."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

HEADER_LIMIT = 512_000_000
"""The largest header in bytes; a vocabulary of a million tokens with its merges takes 40 MB."""
MAX_NAME = 65_535
INCOMPLETE = "the download may be incomplete; fetch it again"
_LEAST, _WINDOW = 64 << 10, 1 << 20

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


class HeaderCursor:
    """Reads a header front to back through one window; nothing is allocated by a number that the file states."""

    def __init__(self, pread: Pread, size: int, name: str, *, sparse: bool = False) -> None:
        self._pread, self.size, self.name, self._sparse = pread, size, name, sparse
        self.position = self.kept_bytes = self.entries = 0
        self._start, self._window = 0, b""

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; a refusal where the file has fewer."""
        self._reserve(count)
        start = self.position - self._start
        if start < 0 or start + count > len(self._window):
            self._start = self.position
            self._window = self._pread(max(count, self._ahead()), self.position)
            start = 0
            if len(self._window) < count:
                self.refuse("ends inside its header", "truncated-header")
        self.position += count
        return self._window[start : start + count]

    def _ahead(self) -> int:
        """Bytes of the next window; sparse, they grow with what was read, so that two thirds of all are header."""
        return min(max(_LEAST, self.position // 2), _WINDOW) if self._sparse else _WINDOW

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes without reading them."""
        self._reserve(count)
        self.position += count

    def _reserve(self, count: int) -> None:
        end = self.position + count
        if end > self.size:
            self.refuse("ends inside its header", "truncated-header", INCOMPLETE)
        if end > HEADER_LIMIT:
            self.refuse(f"has a header of more than {HEADER_LIMIT:,} bytes", "header-too-large")

    def unpack(self, layout: str) -> int | float | bool:
        """One number."""
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def natural(self, layout: str) -> int:
        """One unsigned integer."""
        return int(self.unpack(layout))

    def counted(self, limit: int, noun: str, least: int) -> int:
        """A number of entries of at least ``least`` bytes each, which must fit the file."""
        number = self.natural("<Q")
        if number > limit or number * least > self.size:
            self.refuse(f"declares {number:,} {noun}, more than it can hold", "count")
        return number

    def text(self, limit: int, noun: str) -> str:
        """A string of at most ``limit`` bytes."""
        length = self.natural("<Q")
        if length > limit:
            self.refuse(f"has a {noun} of {length:,} bytes", "name-length")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has a {noun} that is not UTF-8", "not-utf8")

    def refuse(self, why: str, code: str, hint: str = "") -> NoReturn:
        """Raise `UnreadableError` with a stable code."""
        raise UnreadableError(
            f"{shown(self.name)} {why}",
            hint or "only well-formed GGUF files are read; convert it again",
            f"gguf.{code}",
        )
