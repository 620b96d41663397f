"""Read the files of one commit on the Hub by ranges, or from the cache of huggingface_hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub import constants, file_download, snapshot_download
from huggingface_hub.file_download import repo_folder_name

from tieconv.checkpoint.model_files import FileState, Listing
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import UnreadableError
from tieconv.sources import is_hub
from tieconv.sources.digest import Kind, hash_bytes, hash_file, kind_of
from tieconv.sources.hub import RepoPath, parse, session
from tieconv.sources.hub.client import Client, RemoteFile, Snapshot, Stored, url_of
from tieconv.sources.local import FileSet, locate, open_files
from tieconv.sources.ranged import DOCUMENT, RangedFiles, Tick, concurrently, interruptible
from tieconv.text import shell_word, shown
from tieconv.version import VERSION

# Read snapshots in the cache of huggingface_hub, and let huggingface_hub fetch into it.


_COMMIT = re.compile(r"[0-9a-f]{40}")


def snapshot(repo: str, commit: str) -> str:
    """Return the cache path of a commit, which may not exist."""
    return os.path.join(_folder(repo), "snapshots", commit)


def _folder(repo: str) -> str:
    return os.path.join(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type="model"))


def locate_cached(source: str, repo_path: RepoPath) -> tuple[Listing, str]:
    """Return the cached snapshot of a model, and its commit. Makes no request. Raises `UnreadableError`."""
    commit = _resolve(repo_path)
    directory = snapshot(repo_path.repo, commit) if commit else ""
    if commit is None or not os.path.isdir(directory):
        at = f" at {shown(repo_path.revision)}" if repo_path.revision else ""
        problem = f"hf://{repo_path.repo}{at} is not in the local cache, and HF_HUB_OFFLINE is set"
        hint = f"unset HF_HUB_OFFLINE, or fetch it first: hf download {shell_word(repo_path.repo)}"
        raise UnreadableError(problem, hint, "hub.not-cached")
    path = os.path.join(directory, repo_path.path) if repo_path.path else directory
    if not os.path.exists(path):
        raise UnreadableError(
            f"{shown(source)} is not in the local cache, and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE, or fetch it first: "
            f"hf download {shell_word(repo_path.repo)} {shell_word(repo_path.path)}",
            "hub.not-cached",
        )
    return replace(locate(path), source=source), commit


def _resolve(repo_path: RepoPath) -> str | None:
    """Return the commit of a revision that the cache stores, or ``None``."""
    revision = repo_path.revision or constants.DEFAULT_REVISION
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        with open(os.path.join(_folder(repo_path.repo), "refs", revision), encoding="ascii") as file:
            commit = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def fetch(listing: Listing, repo_path: RepoPath, files: Mapping[str, str]) -> str:
    """Fetch ``files`` (with their hashes) of the model into the cache, hash them, and return the model's path.

    An empty hash means the name of the file's blob in the cache. Raises `UnreadableError`.
    """
    inside = repo_path.path if listing.named is None else os.path.dirname(repo_path.path)
    # Patterns that match only these names.
    wanted = [re.sub(r"([*?\[])", r"[\1]", os.path.join(inside, name)) for name in files]
    label = shown(listing.source)
    listed = parse(listing.root).revision if is_hub(listing.root) else None
    served = {
        session.file_key(url_of(repo_path.repo, os.path.join(inside, name), listed)): digest
        for name, digest in files.items()
        if listed is not None
    }
    try:
        with session.transferring(max(listing.entries.values(), default=0), served):
            download = partial(snapshot_download, library_name="tieconv", library_version=VERSION)
            root = interruptible(partial(download, repo_path.repo, revision=repo_path.revision, allow_patterns=wanted))
    except session.Transport as error:
        raise session.translate(error, label) from None
    except session.MALFORMED as error:
        raise session.malformed(label) from error
    if listed is not None and os.path.basename(root) != listed:  # the new commit may have other names
        raise UnreadableError(f"{label} has a new commit since tieconv listed it", "try again", "hub.moved")
    verify(repo_path.repo, os.path.join(root, inside), files)
    return os.path.join(root, repo_path.path) if repo_path.path else str(root)


def cached_root(remote: Snapshot) -> str:
    """Return the cache path of the directory of ``remote``, which may not exist."""
    return os.path.join(snapshot(remote.repo, remote.commit), remote.below).removesuffix("/")


def cached_files(remote: Snapshot) -> frozenset[str]:
    """Return the files of the commit that the local cache holds completely."""
    root = cached_root(remote)
    if not os.path.isdir(root):
        return frozenset()
    return frozenset(name for name, stored in remote.stored.items() if _is_cached(os.path.join(root, name), stored))


def _is_cached(path: str, stored: Stored) -> bool:
    """Return whether the cache has a file of this size at ``path``, and its blob, if any, has this hash."""
    try:
        return os.stat(path).st_size == stored.size and blob_name(path) in (None, stored.digest)
    except OSError:
        return False


_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_proved: dict[FileState, str] = {}
"""Files with the hash that tieconv checked when they entered the cache."""


def blob_name(path: str) -> str | None:
    """Return the name of the blob behind a snapshot's file, which is its hash. ``None`` without a symlink."""
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else None


def verify(repo: str, root: str, files: Mapping[str, str]) -> None:
    """Hash the cached ``files`` of the snapshot ``root``. An empty hash means the name of the blob.

    Raises `UnreadableError` for the first file with another hash.
    """
    for _ in concurrently(lambda name: _verify(repo, root, name, files[name]), list(files), 4):
        continue


def _verify(repo: str, root: str, name: str, known: str) -> None:
    if not os.path.lexists(os.path.join(root, name)):
        problem = f"hf://{repo}: the server did not send {shown(name)}"
        raise UnreadableError(problem, "check HF_ENDPOINT and proxies", "hub.malformed")
    expected = known or blob_name(os.path.join(root, name)) or ""
    if not _HASH.fullmatch(expected):
        problem = f"the Hub cache has no hash for {shown(name)} of hf://{repo}, so tieconv cannot check it"
        raise UnreadableError(problem, "unset HF_HUB_OFFLINE, then try again", "hub.no-hash")
    with open_files(root) as reader:  # one for each thread: after an error other threads may still read
        if _proved.get(reader.state(name)) == expected or hash_file(reader, name, kind_of(expected)) == expected:
            return
    problem = f"{shown(name)} of hf://{repo} is damaged in the local cache: its bytes do not match the hash {expected}"
    hint = f"fetch it again: hf download {shell_word(repo)} {shell_word(name)} --force-download"
    raise UnreadableError(problem, hint, "hub.damaged-cache")


def _admit(move: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Move a fetched file into the cache if its bytes match the hash in its new name."""
    if session.is_limited() and _HASH.fullmatch(target.name):
        with open_files(source.parent) as reader:
            if hash_file(reader, source.name, kind_of(target.name)) != target.name:
                problem = f"the server sent bytes that do not match the hash {target.name}"
                raise session.AnswerError(problem, "check HF_ENDPOINT and proxies", "hub.hash")
    move(source, target)
    if session.is_limited() and _HASH.fullmatch(target.name):
        status = target.stat()
        _proved[FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)] = target.name


def _install() -> None:
    """Make huggingface_hub check a file before it moves the file into the cache.

    huggingface_hub has no public hook for this. If a version lacks the function, `verify` checks the file later.
    """
    move: Any = getattr(file_download, "_chmod_and_move", None)
    if move is not None and getattr(move, "__name__", "") != "admitted":

        def admitted(source: Path, target: Path) -> None:
            _admit(move, Path(source), Path(target))

        file_download._chmod_and_move = admitted  # type: ignore[assignment]


_install()


# Read files of one commit on the Hub by ranges, or from the local cache if it holds them.


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
        file, data = self.remote(name), super().fetch(name, start, end)
        if start == 0 and end == file.size and hash_bytes(data, kind_of(file.digest)) != file.digest:
            problem = f"{file.label}: the server sent bytes that do not match the hash of the listing"
            raise UnreadableError(problem, "check HF_ENDPOINT and proxies", "hub.hash")
        return data

    def remote(self, name: str) -> RemoteFile:
        stored = self.snapshot.file(name)
        commit = self.snapshot.commit
        url = url_of(self.snapshot.repo, self.snapshot.below + name, commit)
        return RemoteFile(url, self.snapshot.label(name), stored.size, commit, stored.digest)
