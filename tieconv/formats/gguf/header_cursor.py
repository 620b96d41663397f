"""Read a GGUF header from start to end. No number in the file decides how much memory is allocated."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

HEADER_LIMIT = 512_000_000
"""The largest header in bytes. A vocabulary of a million tokens with its merges has 40 MB."""
MAX_NAME = 65_535
INCOMPLETE = "the download may be incomplete; fetch it again"
_LEAST, _WINDOW = 64 << 10, 1 << 20

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


class HeaderCursor:
    """Reads a header from start to end through one window."""

    def __init__(self, pread: Pread, size: int, name: str, *, sparse: bool = False) -> None:
        self._pread, self.size, self.name, self._sparse = pread, size, name, sparse
        self.position = self.kept_bytes = self.entries = 0
        self._start, self._window = 0, b""

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises `UnreadableError` if the file has fewer."""
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
        """Return the bytes of the next window. In sparse mode they grow, so that at least two thirds are header."""
        return min(max(_LEAST, self.position // 2), _WINDOW) if self._sparse else _WINDOW

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes without reading them."""
        self._reserve(count)
        self.position += count

    def _reserve(self, count: int) -> None:
        end = self.position + count
        if end > self.size:
            self.refuse("ends inside its header", "truncated-header", INCOMPLETE)
        if end > HEADER_LIMIT:
            self.refuse(f"has a header of more than {HEADER_LIMIT:,} bytes", "header-too-large")

    def unpack(self, layout: str) -> int | float | bool:
        """Read one number."""
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def natural(self, layout: str) -> int:
        """Read one unsigned integer."""
        return int(self.unpack(layout))

    def counted(self, limit: int, noun: str, least: int) -> int:
        """Read a number of entries. Refuse it if entries of ``least`` bytes each would not fit the file."""
        number = self.natural("<Q")
        if number > limit or number * least > self.size:
            self.refuse(f"declares {number:,} {noun}, more than fit the file", "count")
        return number

    def text(self, limit: int, noun: str) -> str:
        """Read a string of at most ``limit`` bytes."""
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
            hint or "convert the model again with llama.cpp",
            f"gguf.{code}",
        )
