"""Count what a client requests and receives, and describe the client that a ranged reader needs."""

from __future__ import annotations

from threading import Lock
from typing import Protocol


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
