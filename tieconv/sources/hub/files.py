"""Files of one commit on the Hub, read by ranges: heads ahead of their use, tensors as streams, small things once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from types import TracebackType

from tieconv.checkpoint.files.git_files import check_git_file
from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.errors import UnreadableError
from tieconv.sources.digest import Kind, hash_bytes, kind_of
from tieconv.sources.hub.cache import cached_files, cached_root
from tieconv.sources.hub.client import Body, Client, RemoteFile, url_of
from tieconv.sources.hub.listing import Snapshot, Stored
from tieconv.sources.hub.pieces import ROOM, Pieces, neighbours
from tieconv.sources.local.files import FileSet
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


class HubFiles:
    """A `Files` and `ByteReader` over one commit; files that the local cache holds are read there.

    ``costly`` says that bytes travel: inspections sample where they would else compare, unless ``proving``.
    ``bytes_read`` counts what was read of tensors. ``nans`` and ``equal_ranges`` keep what was found out about ranges,
    so that nothing travels twice.
    """

    def __init__(self, client: Client, snapshot: Snapshot, tick: Tick | None = None, *, proving: bool = False) -> None:
        self.client, self.snapshot = client, snapshot
        self.bytes_read = 0
        self.proving = proving
        self._tick = tick
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.nans: dict[ByteRange, bool] = {}
        self.equal_ranges: set[frozenset[ByteRange]] = set()
        self._held = Pieces()
        self._holds_streams = sum(snapshot.listing.entries.values()) <= ROOM
        self._streams: OrderedDict[tuple[str, int], Body] = OrderedDict()
        self._cached = cached_files(snapshot)
        self._local = FileSet(cached_root(snapshot))
        self.costly = any(stored.sha256 and name not in self._cached for name, stored in snapshot.stored.items())

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
        stored = self.snapshot.file(name)
        if stored.sha256:
            return FileState(-1, int(stored.sha256, 16), stored.size, 0)
        identity = sha256(
            f"{self.snapshot.repo}@{self.snapshot.commit}/{self.snapshot.below}{name}".encode()
        ).hexdigest()
        return FileState(-2, int(identity, 16), stored.size, 0)

    def content_id(self, name: str) -> str | None:
        """The SHA-256 that the Hub stores the file under: equal ones are equal files."""
        return self.snapshot.file(name).sha256

    def known_hash(self, name: str) -> tuple[Kind, str]:
        """The hash that the file is stored under."""
        stored = self.snapshot.file(name)
        return kind_of(stored.digest), stored.digest

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Fetch small ranges that will each be read once, a few at a time, neighbours with one request."""
        wanted = sorted({(span.file, span.start, span.end) for span in spans if self._travels(span)})
        if len(wanted) < 2:
            return
        runs = list(neighbours(wanted, GAP, READ_AHEAD))
        with workers(min(WORKERS, len(runs))) as pool:
            for _ in pool.map(lambda run: self._missing(run[0][0], run[0][1], max(end for _, _, end in run)), runs):
                continue

    def _travels(self, span: ByteRange) -> bool:
        held = span.file in self._cached or self._held.get(span.file, span.start, span.end) is not None
        return not held and span.size > 0 and span.end <= self.snapshot.file(span.file).size

    def prepare(self, names: Iterable[str]) -> None:
        """Fetch the heads of files that will be read next, a few at a time."""
        wanted = [name for name in names if name not in self._cached and not self._held.until(name, 0, 1)]
        if len(wanted) < 2:
            return
        with workers(min(WORKERS, len(wanted))) as pool:
            for done, _ in enumerate(pool.map(self._head, wanted), 1):
                if self._tick:
                    self._tick(done, len(wanted))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, fewer only at the end of the file. Raises `UnreadableError`."""
        stored = self.snapshot.file(name)
        end = min(offset + size, stored.size)
        if end <= offset:
            return b""
        if name in self._cached:
            return self._local.pread(name, size, offset)
        if offset == 0 or _is_document(stored):
            self._head(name)
        data = self._held.until(name, offset, end)
        if len(data) < end - offset:
            data += self._beyond(name, stored, offset + len(data), end)
        if not offset:
            check_git_file(name, data, stored.size)
        return data

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` of ``span``. Raises `UnreadableError`."""
        start = span.start + offset
        end = start + len(buffer)
        if end > self.snapshot.file(span.file).size:
            raise UnreadableError(f"{shown(span.file)} ended while it was read", "fetch it again", "path.shrank")
        if span.file in self._cached:
            self._local.read_into(span, offset, buffer)
        elif (held := self._held.get(span.file, start, end)) is not None:
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
        """Whether a read goes on where an earlier one of the file ended: then what follows comes as a stream."""
        return (name, start) in self._streams or self._ends.pop((name, start), "") is None

    def _stream(self, span: ByteRange, start: int, buffer: memoryview) -> None:
        """Go on with the stream that stands at ``start``, or open one to the end of the tensor."""
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
                body = self._open(
                    span.file, key[1], self._held.next(span.file, key[1], min(span.end, key[1] + SECTION))
                )
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
        """Hold the first bytes of a file, or all of a document, once."""
        if self._held.until(name, 0, 1):
            return
        stored = self.snapshot.file(name)
        size = stored.size if _is_document(stored) else min(stored.size, READ_AHEAD)
        if size:
            self._held.add(name, 0, self._fetch(name, 0, size))

    def _beyond(self, name: str, stored: Stored, start: int, end: int) -> bytes:
        """Bytes that are not held. What is small comes with what stands around it, and is held."""
        if end - start > READ_AHEAD:
            return self._fetch(name, start, end)
        if end > stored.size - READ_AHEAD:
            first, until = max(min(start, stored.size - READ_AHEAD), 0), stored.size
        else:
            first, until = start, min(max(end, start + SMALL), stored.size)
        return self._missing(name, first, until)[start - first : end - first]

    def _missing(self, name: str, start: int, end: int) -> bytes:
        """Bytes of a file, those of them fetched that are not held, which then are."""
        data = bytearray()
        while start < end:
            piece = self._held.until(name, start, end)
            if not piece:
                piece = self._fetch(name, start, self._held.next(name, start, end))
                self._held.add(name, start, piece)
            data += piece
            start += len(piece)
        return bytes(data)

    def _fetch(self, name: str, start: int, end: int) -> bytes:
        file = self._remote(name)
        data = self.client.read(file, start, end)
        if start == 0 and end == file.size and hash_bytes(data, kind_of(file.digest)) != file.digest:
            raise UnreadableError(
                f"{file.label}: what the server sent does not have the hash of the listing",
                "check HF_ENDPOINT and proxies",
                "hub.hash",
            )
        return data

    def _open(self, name: str, start: int, end: int) -> Body:
        return self.client.open(self._remote(name), start, end)

    def _remote(self, name: str) -> RemoteFile:
        stored = self.snapshot.file(name)
        commit = self.snapshot.commit
        url = url_of(self.snapshot.repo, self.snapshot.below + name, commit)
        return RemoteFile(url, self.snapshot.label(name), stored.size, commit, stored.digest)


def _is_document(stored: Stored) -> bool:
    return stored.sha256 is None and stored.size <= DOCUMENT
