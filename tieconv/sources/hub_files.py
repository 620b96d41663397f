"""Files of one commit on the Hub, read by ranges: heads ahead of their use, tensors as streams, small things once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from types import TracebackType

from tieconv.checkpoint.git_files import check_git_file
from tieconv.checkpoint.records import ByteRange, FileState
from tieconv.errors import UnreadableError
from tieconv.sources.digest import Kind
from tieconv.sources.hub_cache import snapshot
from tieconv.sources.hub_client import Body, Client, url_of
from tieconv.sources.hub_listing import Found, Stored
from tieconv.sources.local import FileSet
from tieconv.sources.threads import workers
from tieconv.text import shown

Tick = Callable[[int, int], None]

READ_AHEAD = 64 * 1024
"""Bytes of a file's head, or tail, that one request brings: the header of most shards is smaller."""
SMALL = 4096
"""The least that a request elsewhere brings."""
GAP = 16 * 1024
"""Bytes between two ranges that are fetched with them rather than with a request more."""
STREAMED = 32 * 1024
"""Reads of at least so many bytes open a stream that the next read goes on with."""
SECTION = 64 << 20
"""The longest stretch that is asked for at once."""
DOCUMENT = 16 << 20
"""The largest file that is fetched whole; what is no LFS file is smaller on the Hub."""
WORKERS = 8
_STREAMS = 8


Place = tuple[str, int, int]
"""A file, the first byte of a range of it and the last + 1."""


class HubFiles:
    """A `Files` and `ByteReader` over one commit; files that the local cache holds are read there.

    ``costly`` says that bytes travel: inspections sample where they would else compare, unless ``proving``.
    ``bytes_read`` counts what was read of tensors.
    """

    def __init__(self, client: Client, found: Found, tick: Tick | None = None, *, proving: bool = False) -> None:
        self.client, self.found = client, found
        self.bytes_read = 0
        self.proving = proving
        self._tick = tick
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._announced: dict[Place, bytes] = {}
        self._held: dict[str, list[tuple[int, bytes]]] = {}
        self._streams: OrderedDict[tuple[str, int], Body] = OrderedDict()
        self._cached = _cached_files(found)
        self._local = FileSet(_cached_root(found))
        self.costly = any(stored.sha256 and name not in self._cached for name, stored in found.stored.items())

    def __enter__(self) -> HubFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for body in self._streams.values():
            body.close()
        self._streams.clear()
        self._local.close()

    def state(self, name: str) -> FileState:
        """As a local file's. Equal for two LFS files of any repository exactly where their content hashes are."""
        stored = self._stored(name)
        if stored.sha256:
            return FileState(-1, int(stored.sha256, 16), stored.size, 0)
        place = sha256(f"{self.found.repo}@{self.found.commit}/{self.found.below}{name}".encode()).hexdigest()
        return FileState(-2, int(place, 16), stored.size, 0)

    def content_id(self, name: str) -> str | None:
        """The SHA-256 that the Hub stores the file under: equal ones are equal files."""
        return self._stored(name).sha256

    def known_hash(self, name: str) -> tuple[Kind, str]:
        """The hash that the file is stored under."""
        stored = self._stored(name)
        return ("sha256", stored.sha256) if stored.sha256 else ("git", stored.blob)

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Fetch small ranges that will each be read once, a few at a time, neighbours with one request.

        They are held until they are read, or until others are announced.
        """
        self._announced.clear()
        wanted = sorted({(one.file, one.start, one.end) for one in spans if self._travels(one)})
        if len(wanted) < 2:
            return
        runs = list(_runs(wanted))
        with workers(min(WORKERS, len(runs))) as pool:
            for run, data in zip(runs, pool.map(self._fetch_run, runs), strict=True):
                first = run[0][1]
                for file, start, end in run:
                    self._announced[file, start, end] = data[start - first : end - first]

    def _travels(self, span: ByteRange) -> bool:
        held = span.file in self._cached or self._from_held(span.file, span.start, span.end) is not None
        return not held and span.size > 0 and span.end <= self._stored(span.file).size

    def _fetch_run(self, run: list[Place]) -> bytes:
        return self._fetch(run[0][0], run[0][1], max(end for _, _, end in run))

    def prepare(self, names: Iterable[str]) -> None:
        """Fetch the heads of files that will be read next, a few at a time."""
        wanted = [name for name in names if name not in self._cached and name not in self._held]
        if len(wanted) < 2:
            return
        with workers(min(WORKERS, len(wanted))) as pool:
            for done, _ in enumerate(pool.map(self._head, wanted), 1):
                if self._tick:
                    self._tick(done, len(wanted))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, fewer only at the end of the file. Raises `UnreadableError`."""
        stored = self._stored(name)
        end = min(offset + size, stored.size)
        if end <= offset:
            return b""
        if name in self._cached:
            return self._local.pread(name, size, offset)
        if name not in self._held and (offset == 0 or _is_document(stored)):
            self._head(name)
        found = self._from_held(name, offset, end)
        if found is None:
            start = self._known_until(name, offset, end)
            ahead = self._from_held(name, offset, start) or b""
            found = ahead + self._beyond(name, stored, start, end)
        if not offset:
            check_git_file(name, found, stored.size)
        return found

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` of ``span``. Raises `UnreadableError`."""
        start = span.start + offset
        end = start + len(buffer)
        if end > self._stored(span.file).size:
            raise UnreadableError(f"{shown(span.file)} ended while it was read", "fetch it again", "path.shrank")
        if span.file in self._cached:
            self._local.read_into(span, offset, buffer)
        elif (found := self._at_hand((span.file, start, end))) is not None:
            buffer[:] = found
        elif len(buffer) < STREAMED and not self._goes_on(span.file, start):
            buffer[:] = self._fetch(span.file, start, end)
            self._ends[span.file, end] = None
            while len(self._ends) > _STREAMS:
                self._ends.popitem(last=False)
        else:
            self._stream(span, start, buffer)
        self.bytes_read += len(buffer)

    def _goes_on(self, name: str, start: int) -> bool:
        """Whether a read goes on where an earlier one of the file ended: then what follows comes as a stream."""
        return (name, start) in self._streams or self._ends.pop((name, start), "") is None

    def _at_hand(self, place: Place) -> bytes | None:
        """What was announced, and is then let go, or is held."""
        found = self._announced.pop(place, None)
        return self._from_held(*place) if found is None else found

    def _stream(self, span: ByteRange, start: int, buffer: memoryview) -> None:
        """Go on with the stream that stands at ``start``, or open one to the end of the tensor."""
        done = 0
        while done < len(buffer):
            key = (span.file, start + done)
            body = self._streams.pop(key, None)
            if body is None:
                body = self._open(span.file, key[1], min(span.end, key[1] + SECTION))
            size = min(len(buffer) - done, body.end - body.position)
            try:
                body.read_into(buffer[done : done + size])
            except BaseException:
                body.close()
                raise
            done += size
            if body.position == body.end:
                body.close()
                continue
            self._streams[span.file, body.position] = body
            while len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)[1].close()

    def _head(self, name: str) -> None:
        """Hold the first bytes of a file, or all of a document."""
        stored = self._stored(name)
        size = stored.size if _is_document(stored) else min(stored.size, READ_AHEAD)
        if size:
            self._held.setdefault(name, []).append((0, self._fetch(name, 0, size)))

    def _beyond(self, name: str, stored: Stored, start: int, end: int) -> bytes:
        """Bytes that are not held. What is small comes with what stands around it, and is held."""
        if end - start > READ_AHEAD:
            return self._fetch(name, start, end)
        if end > stored.size - READ_AHEAD:
            first, last = max(min(start, stored.size - READ_AHEAD), 0), stored.size
        else:
            first, last = start, min(max(end, start + SMALL), stored.size)
        data = self._fetch(name, first, last)
        held = self._held.setdefault(name, [])
        held.append((first, data))
        del held[2:-2]  # head, first tail, and the last two
        return data[start - first : end - first]

    def _from_held(self, name: str, start: int, end: int) -> bytes | None:
        for first, data in self._held.get(name, ()):
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        return None

    def _known_until(self, name: str, start: int, end: int) -> int:
        """How far what is held reaches from ``start``; ``start`` itself where it reaches nowhere."""
        ends = [first + len(data) for first, data in self._held.get(name, ()) if first <= start < first + len(data)]
        return min(max(ends, default=start), end)

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        stored = self._stored(name)
        return self.client.read(self._url(name), self._what(name), start, end, stored.size, self.found.commit)

    def _open(self, name: str, start: int, end: int) -> Body:
        stored = self._stored(name)
        return self.client.open(self._url(name), self._what(name), start, end, stored.size, self.found.commit)

    def _url(self, name: str) -> str:
        return url_of(self.found.repo, self.found.below + name, self.found.commit)

    def _what(self, name: str) -> str:
        return f"{shown(self.found.listing.source)}: {shown(name)}"

    def _stored(self, name: str) -> Stored:
        try:
            return self.found.stored[name]
        except KeyError:
            raise UnreadableError(
                f"{self._what(name)} is not in the repository", "check the name", "hub.no-file"
            ) from None


def _runs(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Sorted ranges that lie so near to each other that one request brings them, or overlap."""
    run: list[Place] = []
    reach = 0
    for place in places:
        if run and (place[0] != run[0][0] or place[1] > reach + GAP or place[2] > run[0][1] + READ_AHEAD):
            yield run
            run = []
        reach = max(reach, place[2]) if run else place[2]
        run.append(place)
    if run:
        yield run


def _is_document(stored: Stored) -> bool:
    return stored.sha256 is None and stored.size <= DOCUMENT


def _cached_root(found: Found) -> str:
    return os.path.join(snapshot(found.repo, found.commit), found.below).removesuffix("/")


def _cached_files(found: Found) -> frozenset[str]:
    """The files of the commit that the local cache holds whole."""
    root = _cached_root(found)
    if not os.path.isdir(root):
        return frozenset()
    return frozenset(name for name, stored in found.stored.items() if _size_at(os.path.join(root, name)) == stored.size)


def _size_at(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
