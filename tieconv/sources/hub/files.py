"""Read files of one commit on the Hub by ranges: headers ahead, tensors as streams, small files once."""

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
"""The largest file that is fetched whole. On the Hub, files outside LFS are smaller."""
WORKERS = 8
_STREAMS = 8


class HubFiles:
    """A `Files` and `ByteReader` of one commit. Reads files from the local cache if it holds them.

    ``costly`` means that bytes are fetched, so inspections sample tensors unless ``proving`` is true. ``bytes_read``
    counts bytes of tensors. ``nans`` and ``equal_ranges`` cache results, so that no range is fetched twice.
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
        """Return a state as for a local file. Two LFS files have equal states if and only if their hashes are equal."""
        stored = self.snapshot.file(name)
        if stored.sha256:
            return FileState(-1, int(stored.sha256, 16), stored.size, 0)
        identity = sha256(
            f"{self.snapshot.repo}@{self.snapshot.commit}/{self.snapshot.below}{name}".encode()
        ).hexdigest()
        return FileState(-2, int(identity, 16), stored.size, 0)

    def content_id(self, name: str) -> str | None:
        """Return the SHA-256 of an LFS or xet file, or ``None``. Files with equal hashes are equal."""
        return self.snapshot.file(name).sha256

    def known_hash(self, name: str) -> tuple[Kind, str]:
        """Return the kind and the value of the stored file's hash."""
        stored = self.snapshot.file(name)
        return kind_of(stored.digest), stored.digest

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Fetch small ranges ahead in parallel. Neighbouring ranges share one request."""
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
        """Fetch the headers of files ahead, in parallel."""
        wanted = [name for name in names if name not in self._cached and not self._held.until(name, 0, 1)]
        if len(wanted) < 2:
            return
        with workers(min(WORKERS, len(wanted))) as pool:
            for done, _ in enumerate(pool.map(self._head, wanted), 1):
                if self._tick:
                    self._tick(done, len(wanted))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer only at the end of the file. Raises `UnreadableError`."""
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
            raise UnreadableError(f"{shown(span.file)} ended while it was read", "fetch the file again", "path.shrank")
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
        """Fetch and keep the first bytes of a file, or all bytes of a document."""
        if self._held.until(name, 0, 1):
            return
        stored = self.snapshot.file(name)
        size = stored.size if _is_document(stored) else min(stored.size, READ_AHEAD)
        if size:
            self._held.add(name, 0, self._fetch(name, 0, size))

    def _beyond(self, name: str, stored: Stored, start: int, end: int) -> bytes:
        """Fetch bytes that are not in memory. Fetches and keeps bytes around a small range."""
        if end - start > READ_AHEAD:
            return self._fetch(name, start, end)
        if end > stored.size - READ_AHEAD:
            first, until = max(min(start, stored.size - READ_AHEAD), 0), stored.size
        else:
            first, until = start, min(max(end, start + SMALL), stored.size)
        return self._missing(name, first, until)[start - first : end - first]

    def _missing(self, name: str, start: int, end: int) -> bytes:
        """Return bytes of a file. Fetches and keeps the bytes that are not in memory."""
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
                f"{file.label}: the server sent bytes that do not match the hash of the listing",
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
