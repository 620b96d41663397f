"""Read protocol buffers field by field. No number in the file decides how much memory is allocated.

Source: the encoding page of protobuf.dev. Groups are refused, because no current schema writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NoReturn

from tieconv.errors import UnreadableError
from tieconv.text import shown

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""
Field = tuple[int, int, int, int]
"""Field number, wire type, and two numbers.

The numbers are the value and 0. For a field with a length they are the offsets of its start and end.
"""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 600_000
"""The most fields of one file. Graphs of language models have a quarter of this."""
MAX_TEXT = 65_535
_WINDOW = 1 << 20
_SPARSE = 4096
MAX_JUMPS = 4000
"""The most reads after skipped fields of a remote file. Each read is a separate request."""
_NUMBERS = 1 << 29
"""All field numbers are smaller than this."""
_LONGEST = 20
"""The most bytes of a tag and its varint."""


class Wire:
    """Reads one file as messages. Checks every length against the enclosing message."""

    def __init__(self, pread: Pread, size: int, name: str, noun: str, *, sparse: bool = False) -> None:
        """Open a file. If ``sparse`` is true, read little after a skipped field; the window grows with each read."""
        self._pread, self.size, self.name, self._noun = pread, size, name, noun
        self._start, self._window = 0, b""
        self._left = MAX_FIELDS
        self.is_utf8 = True
        """Whether all strings so far are UTF-8, as the encoding demands."""
        self._least = self._next = _SPARSE if sparse else _WINDOW
        self._jumps = MAX_JUMPS if sparse else MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets."""
        position = start
        while position < end:
            self._left -= 1
            if self._left < 0:
                self.refuse(f"has more than {MAX_FIELDS:,} fields", "fields")
            tag, position = self.varint(position, end)
            number, kind = tag >> 3, tag & 7
            if not 0 < number < _NUMBERS:
                why = f"holds the invalid field number {number} at byte {position:,}, or is not an {self._noun}"
                self.refuse(why, "truncated")
            if kind == VARINT:
                value, position = self.varint(position, end)
                yield number, kind, value, 0
                continue
            if kind == BYTES:
                length, position = self.varint(position, end)
            elif kind in (FIXED32, FIXED64):
                length = 4 if kind == FIXED32 else 8
            else:
                self.refuse(f"holds the unknown wire type {kind} at byte {position:,}", "wire-type")
            if length > end - position:
                self.refuse(f"ends inside a field at byte {position:,}, or is not an {self._noun}", "truncated")
            yield number, kind, position, position + length
            position += length

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the number at ``position``, and the offset behind it."""
        window, at = self._at(position)
        value = shift = 0
        for byte in window[at : at + min(10, end - position)]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + shift // 7
        raise self._error(f"ends inside a number at byte {position:,}, or is not an {self._noun}", "truncated")

    def _at(self, position: int) -> tuple[bytes, int]:
        at = position - self._start
        if at < 0 or (at + _LONGEST > len(self._window) and self._start + len(self._window) < self.size):
            goes_on = 0 <= at <= len(self._window)
            self._next = min(self._next * 2, _WINDOW) if goes_on and self._window else self._least
            self._start, at = position, 0
            self._jumps -= 1
            if self._jumps < 0:
                raise UnreadableError(
                    f"{shown(self.name)} needs more than {MAX_JUMPS:,} requests on the Hub",
                    "fetch the model and give the local directory: hf download ORG/NAME --local-dir DIR",
                    "onnx.requests",
                )
            self._window = self._pread(self._next, position)
        return self._window, at

    def take(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        at = start - self._start
        if at >= 0 and end - self._start <= len(self._window):
            return self._window[at : at + end - start]
        return self._pread(end - start, start)

    def text(self, start: int, end: int) -> str:
        """Return a string. Bytes that are not UTF-8 become backslash escapes."""
        if end - start > MAX_TEXT:
            self.refuse(f"has a name of {end - start:,} bytes", "name-length")
        raw = self.take(start, end)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.is_utf8 = False
            return raw.decode("utf-8", errors="backslashreplace")

    def numbers(self, field: Field) -> Iterator[int]:
        """Yield the entries of a repeated integer, packed or not."""
        _, kind, value, end = field
        if kind == VARINT:
            yield value
        while kind == BYTES and value < end:
            self._left -= 1
            if self._left < 0:
                self.refuse(f"has more than {MAX_FIELDS:,} fields", "fields")
            number, value = self.varint(value, end)
            yield number

    def single(self, field: Field) -> float:
        """Return a float32 number."""
        number: float = struct.unpack("<f", self.take(field[2], field[3]))[0] if field[1] == FIXED32 else 0.0
        return number

    def refuse(self, why: str, code: str) -> NoReturn:
        raise self._error(why, code)

    def _error(self, why: str, code: str) -> UnreadableError:
        return UnreadableError(f"{shown(self.name)} {why}", "fetch or export the model again", f"onnx.{code}")


def signed(value: int) -> int:
    """Convert a varint to a signed 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value
