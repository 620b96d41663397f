"""Count what a client requests and receives, bound its listings, and describe what a ranged reader needs of it."""

from __future__ import annotations

import time
from threading import Lock
from typing import Protocol

from tieconv.errors import UnreadableError

PAGE = 1000
"""The most keys of one page of a listing."""
MOST_KEYS = 10_000_000
"""The most keys of a listing."""
LISTING_SECONDS = 3600.0
"""The most time for a listing. Each page has a separate limit."""


class ListingBounds:
    """What one listing of a server has had: its pages, each with a name that no other may have."""

    def __init__(self, label: str, hint: str, code: str) -> None:
        self._label, self._hint, self._code = label, hint, code
        self._pages: set[str] = set()
        self._end = time.monotonic() + LISTING_SECONDS

    def page(self, name: str, repeats: bool = False) -> None:
        """Count a page. ``repeats`` says that it has a key twice. Raises `UnreadableError` for an endless listing."""
        twice, late = repeats or name in self._pages, time.monotonic() > self._end
        self._pages.add(name)
        if twice or late or len(self._pages) > MOST_KEYS // PAGE:
            why = "sent a key twice" if twice else "needs too long" if late else f"sent more than {MOST_KEYS:,} keys"
            code = "repeated" if twice else "endless" if late else "too-large"
            problem = f"{self._label} cannot be listed: the server {why}"
            raise UnreadableError(problem, self._hint, f"{self._code}.{code}")


class Traffic:
    """``requests`` counts requests; ``bytes`` counts received bytes of files. Several threads may count."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.lock = Lock()

    def count(self, requests: int = 0, bytes: int = 0) -> None:
        with self.lock:
            self.requests += requests
            self.bytes += bytes


class Stream(Protocol):
    """An open range of a file, read in order from ``position`` to ``end``."""

    position: int
    end: int

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``. Raises `UnreadableError` if the server does not send what it listed."""
        ...

    def close(self) -> None:
        """Close the connection without reading the rest."""
        ...


def read_range(stream: Stream) -> bytes:
    """Return the bytes of a stream that was not read yet, and close it. Raises `UnreadableError`."""
    data = bytearray(stream.end - stream.position)
    try:
        stream.read_into(memoryview(data))
    finally:
        stream.close()
    return bytes(data)
