"""Read files of a remote model by ranges, whichever server holds them."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, RLock
from types import TracebackType
from typing import Any, Self, TypeVar

from tieconv.checkpoint.model_files import FileState, Listing, check_git_file
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import UnreadableError
from tieconv.text import shown

# Threads for network requests, which an interrupt leaves behind without waiting.


S = TypeVar("S")
T = TypeVar("T")

_PREFIX = "tieconv-network"


def concurrently(work: Callable[[S], T], items: Sequence[S], most: int) -> Iterator[T]:
    """Yield the results of ``work`` in order, from ``most`` threads. On an error or an interrupt, do not wait."""
    if sys.platform == "emscripten":  # no threads, in the page of docs/try
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(min(most, len(items)) or 1, thread_name_prefix=_PREFIX)
    try:
        yield from pool.map(work, items)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def interruptible(
    work: Callable[[], T],
    timeout: float | None = None,
    late: Callable[[], Exception] = TimeoutError,
    discard: Callable[[T], object] = id,
) -> T:
    """Run ``work`` in a thread and return its result, so that an interrupt works meanwhile.

    Raises the result of ``late`` after ``timeout`` seconds. A later result of ``work`` goes to ``discard``.
    """
    if sys.platform == "emscripten":
        return work()
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name=_PREFIX, daemon=True).start()
    try:
        return future.result(timeout)
    except TimeoutError:
        if future.done():
            raise
        future.add_done_callback(lambda done: done.exception() or discard(done.result()))
        raise late() from None


def anything_waits() -> bool:
    """Return whether a network thread is still running."""
    return any(thread.name.startswith(_PREFIX) for thread in threading.enumerate())


# Count what a client requests and receives, bound its listings, and describe what a ranged reader needs of it.


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


class Stream(ABC):
    """An open range of a file, read in order from ``position`` to ``end``. A subclass asks the server."""

    def __init__(self, start: int, end: int) -> None:
        self.position, self.end = start, end
        self._left = memoryview(b"")

    @abstractmethod
    def _next(self) -> memoryview:
        """Return the next bytes, or none to be called again. Requests them on first use."""

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``. Raises `UnreadableError` if the server does not send what it listed."""
        done = 0
        while done < len(buffer):
            self._left = self._left or self._next()
            piece = self._left[: len(buffer) - done]
            buffer[done : done + len(piece)] = piece
            self._left = self._left[len(piece) :]
            self.position += len(piece)
            done += len(piece)

    def close(self) -> None:
        """Close the connection without reading the rest."""
        self._left = memoryview(b"")


class Traffic(ABC):
    """A client of one server. ``requests`` and ``bytes`` count what it asks for and receives, also in threads."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.lock = Lock()

    def count(self, requests: int = 0, bytes: int = 0) -> None:
        with self.lock:
            self.requests += requests
            self.bytes += bytes

    @abstractmethod
    def open(self, file: Any, start: int, end: int) -> Stream:
        """Return a stream of the bytes ``start`` to ``end`` of a file, as `RangedFiles.remote` describes it."""

    def read(self, file: Any, start: int, end: int) -> bytes:
        """Return the bytes ``start`` to ``end`` of a file. Raises `UnreadableError`."""
        stream = self.open(file, start, end)
        data = bytearray(end - start)
        try:
            stream.read_into(memoryview(data))
        finally:
            stream.close()
        return bytes(data)


# Read files of a remote model by ranges: headers ahead, tensors as streams, small files once.


Tick = Callable[[int, int], None]

READ_AHEAD = 64 * 1024
"""Bytes that one request fetches at the start or end of a file. The headers of most shards are smaller."""
SMALL = 4096
"""The fewest bytes of a request in the middle of a file."""
GAP = 16 * 1024
"""Ranges with at most this many bytes between them share one request."""
STREAMED = 32 * 1024
"""Reads of at least this many bytes open a stream that the next read can continue."""
SECTION = 64 << 20
"""The most bytes of one request."""
DOCUMENT = 16 << 20
"""The largest file that is fetched whole."""
WORKERS = 8
_STREAMS = 8


class RangedFiles(ABC):
    """A `Files` and `ByteReader` of a remote model. A subclass knows the server.

    ``costly`` means that bytes are fetched, so inspections sample tensors unless ``proving`` is true. ``bytes_read``
    counts bytes of tensors. ``nans`` and ``equal_ranges`` cache results, so that no range is fetched twice.
    """

    costly = True

    def __init__(self, client: Traffic, listing: Listing, tick: Tick | None = None, *, proving: bool = False) -> None:
        self.client, self.listing = client, listing
        self.bytes_read = 0
        self.proving = proving
        self._tick = tick
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.nans: dict[ByteRange, bool] = {}
        self.equal_ranges: set[frozenset[ByteRange]] = set()
        self._held = Pieces()
        self._holds_streams = sum(listing.entries.values()) <= ROOM
        self._streams: OrderedDict[tuple[str, int], Stream] = OrderedDict()

    @abstractmethod
    def state(self, name: str) -> FileState:
        """Return what identifies the listed file's content."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the listed size of a file in bytes. Raises `UnreadableError` if the model has no such file."""

    @abstractmethod
    def is_document(self, name: str) -> bool:
        """Return whether a read of a file fetches the whole file."""

    @abstractmethod
    def remote(self, name: str) -> Any:
        """Return what the client needs to request a file."""

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Fetch the bytes ``start`` to ``end`` of a file. Raises `UnreadableError`, also if it was replaced."""
        return self.client.read(self.remote(name), start, end)

    def open(self, name: str, start: int, end: int) -> Stream:
        """Open a stream of the bytes ``start`` to ``end`` of a file."""
        return self.client.open(self.remote(name), start, end)

    def is_local(self, name: str) -> bool:
        """Return whether a file needs no request, because a cache holds it."""
        return False

    def content_id(self, name: str) -> str | None:
        """Return a hash of the file's content if the server has one. Files with equal hashes are equal."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for body in self._streams.values():
            body.close()
        self._streams.clear()

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Fetch small ranges ahead in parallel. Neighbouring ranges share one request."""
        wanted = sorted({(span.file, span.start, span.end) for span in spans if self._travels(span)})
        if len(wanted) < 2:
            return
        runs = list(neighbours(wanted, GAP, READ_AHEAD))
        for _ in concurrently(lambda run: self._missing(*run[0][:2], max(end for _, _, end in run)), runs, WORKERS):
            continue

    def _travels(self, span: ByteRange) -> bool:
        held = self.is_local(span.file) or self._held.get(span.file, span.start, span.end) is not None
        return not held and span.size > 0 and span.end <= self.size(span.file)

    def prepare(self, names: Iterable[str]) -> None:
        """Fetch the headers of files ahead, in parallel."""
        wanted = [name for name in names if not self.is_local(name) and not self._held.until(name, 0, 1)]
        if len(wanted) < 2:
            return
        for done, _ in enumerate(concurrently(self._head, wanted, WORKERS), 1):
            if self._tick:
                self._tick(done, len(wanted))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer only at the end of the file. Raises `UnreadableError`."""
        whole = self.size(name)
        end = min(offset + size, whole)
        if end <= offset:
            return b""
        if offset == 0 or self.is_document(name):
            self._head(name)
        data = self._held.until(name, offset, end)
        if len(data) < end - offset:
            data += self._beyond(name, whole, offset + len(data), end)
        if not offset:
            check_git_file(name, data, whole)
        return data

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` of ``span``. Raises `UnreadableError`."""
        start = span.start + offset
        end = start + len(buffer)
        if end > self.size(span.file):
            raise UnreadableError(f"{shown(span.file)} ended while it was read", "fetch the file again", "path.shrank")
        if (held := self._held.get(span.file, start, end)) is not None:
            buffer[:] = held
            self._goes_on(span.file, start)
        elif len(buffer) < STREAMED and not self._goes_on(span.file, start):
            buffer[:] = self._missing(span.file, start, end)
            self._ends[span.file, end] = None
            while len(self._ends) > _STREAMS:
                self._ends.popitem(last=False)
        else:
            self._stream(span, start, buffer)
        self.bytes_read += len(buffer)

    def _goes_on(self, name: str, start: int) -> bool:
        """Return whether a read continues an earlier read of the file. Such reads become a stream."""
        return (name, start) in self._streams or self._ends.pop((name, start), "") is None

    def _stream(self, span: ByteRange, start: int, buffer: memoryview) -> None:
        """Continue the stream at ``start``, or open a stream to the end of the tensor."""
        done = 0
        while done < len(buffer):
            key = (span.file, start + done)
            body = self._streams.pop(key, None)
            if body is None:
                held = self._held.until(span.file, key[1], start + len(buffer))
                if held:
                    buffer[done : done + len(held)] = held
                    done += len(held)
                    continue
                body = self.open(span.file, key[1], self._held.next(span.file, key[1], min(span.end, key[1] + SECTION)))
            size = min(len(buffer) - done, body.end - body.position)
            try:
                body.read_into(buffer[done : done + size])
            except BaseException:
                body.close()
                raise
            if self._holds_streams:
                self._held.add(span.file, key[1], bytes(buffer[done : done + size]))
            done += size
            if body.position == body.end:
                body.close()
                continue
            self._streams[span.file, body.position] = body
            while len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)[1].close()

    def _head(self, name: str) -> None:
        """Fetch and keep the first bytes of a file, or all bytes of a document."""
        if self._held.until(name, 0, 1):
            return
        size = self.size(name)
        if not self.is_document(name):
            size = min(size, READ_AHEAD)
        if size:
            self._held.add(name, 0, self.fetch(name, 0, size))

    def _beyond(self, name: str, size: int, start: int, end: int) -> bytes:
        """Fetch bytes that are not in memory. Fetches and keeps bytes around a small range."""
        if end - start > READ_AHEAD:
            return self.fetch(name, start, end)
        if end > size - READ_AHEAD:
            first, until = max(min(start, size - READ_AHEAD), 0), size
        else:
            first, until = start, min(max(end, start + SMALL), size)
        return self._missing(name, first, until)[start - first : end - first]

    def _missing(self, name: str, start: int, end: int) -> bytes:
        data = bytearray()
        while start < end:
            piece = self._held.until(name, start, end)
            if not piece:
                piece = self.fetch(name, start, self._held.next(name, start, end))
                self._held.add(name, start, piece)
            data += piece
            start += len(piece)
        return bytes(data)


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
