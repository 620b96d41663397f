"""Keep fetched bytes of files in memory, so that they are not fetched again."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from threading import RLock

ROOM = 64 << 20
"""The most bytes in memory. The oldest are dropped first."""
_OVERLAPPING = 4

Span = tuple[str, int, int]
"""File name, start and end of a byte range."""


class Pieces:
    """Pieces of files, by file name and start offset."""

    def __init__(self, room: int = ROOM) -> None:
        self._whole = self._room = room
        self._data: dict[tuple[str, int], bytes] = {}
        self._starts: dict[str, list[int]] = defaultdict(list)
        self._order: deque[tuple[str, int]] = deque()
        self._lock = RLock()

    def add(self, name: str, start: int, data: bytes) -> None:
        """Keep ``data``, which starts at byte ``start`` of a file, unless a longer piece from there is kept."""
        key = name, start
        with self._lock:
            if len(data) > self._whole // 2 or len(self._data.get(key, b"")) >= len(data):
                return
            self._drop(key)
            self._data[key] = data
            insort(self._starts[name], start)
            self._order.append(key)
            self._room -= len(data)
            while self._room < 0:
                self._drop(self._order[0])

    def _drop(self, key: tuple[str, int]) -> None:
        if key in self._data:
            self._room += len(self._data.pop(key))
            self._starts[key[0]].remove(key[1])
            self._order.remove(key)

    def get(self, name: str, start: int, end: int) -> bytes | None:
        """Return the bytes ``start`` to ``end`` if one piece holds them all, or ``None``."""
        data = self.until(name, start, end)
        return data if len(data) == end - start else None

    def until(self, name: str, start: int, end: int) -> bytes:
        """Return as many of those bytes as one piece holds from ``start`` on."""
        with self._lock:
            starts = self._starts.get(name, [])
            at = bisect_right(starts, start)
            firsts = starts[max(at - _OVERLAPPING, 0) : at]
            return max((self._data[name, first][start - first : end - first] for first in firsts), key=len, default=b"")

    def next(self, name: str, start: int, end: int) -> int:
        """Return the start of the first piece after ``start``, at most ``end``."""
        with self._lock:
            starts = self._starts.get(name, [])
            at = bisect_right(starts, start)
            return min(starts[at], end) if at < len(starts) else end


def neighbours(spans: Iterable[Span], gap: int, longest: int) -> Iterator[list[Span]]:
    """Group sorted ranges that overlap or are close enough for one request."""
    run: list[Span] = []
    reach = 0
    for span in spans:
        if run and (span[0] != run[0][0] or span[1] > reach + gap or span[2] > run[0][1] + longest):
            yield run
            run = []
        reach = max(reach, span[2]) if run else span[2]
        run.append(span)
    if run:
        yield run
