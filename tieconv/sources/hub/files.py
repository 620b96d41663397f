"""Read files of one commit on the Hub by ranges, or from the local cache if it holds them."""

from __future__ import annotations

from hashlib import sha256

from tieconv.checkpoint.model_files import FileState
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import UnreadableError
from tieconv.sources.digest import Kind, hash_bytes, kind_of
from tieconv.sources.hub.cache import cached_files, cached_root
from tieconv.sources.hub.client import Body, Client, RemoteFile, url_of
from tieconv.sources.hub.listing import Snapshot
from tieconv.sources.local.files import FileSet
from tieconv.sources.ranged.ranged_files import DOCUMENT, RangedFiles, Tick


class HubFiles(RangedFiles):
    """The files of one commit. The reader is ``costly`` only if the local cache lacks a weight file."""

    client: Client

    def __init__(self, client: Client, snapshot: Snapshot, tick: Tick | None = None, *, proving: bool = False) -> None:
        super().__init__(client, snapshot.listing, tick, proving=proving)
        self.snapshot = snapshot
        self._cached = cached_files(snapshot)
        self._local = FileSet(cached_root(snapshot))
        self.costly = any(stored.sha256 and name not in self._cached for name, stored in snapshot.stored.items())

    def close(self) -> None:
        super().close()
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

    def size(self, name: str) -> int:
        return self.snapshot.file(name).size

    def is_document(self, name: str) -> bool:
        """Return whether a file is outside LFS, where files are small."""
        stored = self.snapshot.file(name)
        return stored.sha256 is None and stored.size <= DOCUMENT

    def is_local(self, name: str) -> bool:
        return name in self._cached

    def content_id(self, name: str) -> str | None:
        """Return the SHA-256 of an LFS or xet file, or ``None``."""
        return self.snapshot.file(name).sha256

    def known_hash(self, name: str) -> tuple[Kind, str]:
        """Return the kind and the value of the stored file's hash."""
        stored = self.snapshot.file(name)
        return kind_of(stored.digest), stored.digest

    def pread(self, name: str, size: int, offset: int) -> bytes:
        if name in self._cached and 0 <= offset < self.size(name):
            return self._local.pread(name, size, offset)
        return super().pread(name, size, offset)

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        if span.file not in self._cached or span.start + offset + len(buffer) > self.size(span.file):
            super().read_into(span, offset, buffer)
            return
        self._local.read_into(span, offset, buffer)
        self.bytes_read += len(buffer)

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Fetch bytes, and compare the hash of a whole file with the listing. Raises `UnreadableError`."""
        file = self._remote(name)
        data = self.client.read(file, start, end)
        if start == 0 and end == file.size and hash_bytes(data, kind_of(file.digest)) != file.digest:
            raise UnreadableError(
                f"{file.label}: the server sent bytes that do not match the hash of the listing",
                "check HF_ENDPOINT and proxies",
                "hub.hash",
            )
        return data

    def open(self, name: str, start: int, end: int) -> Body:
        return self.client.open(self._remote(name), start, end)

    def _remote(self, name: str) -> RemoteFile:
        stored = self.snapshot.file(name)
        commit = self.snapshot.commit
        url = url_of(self.snapshot.repo, self.snapshot.below + name, commit)
        return RemoteFile(url, self.snapshot.label(name), stored.size, commit, stored.digest)
