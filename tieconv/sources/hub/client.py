"""Send requests to the Hub with huggingface_hub's session, and list the files of a repository at one commit."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import huggingface_hub.constants as constants
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import is_inside
from tieconv.sources.hub import RepoPath, session
from tieconv.sources.hub.session import listing
from tieconv.sources.local import MAX_FILES
from tieconv.sources.ranged import Stream, Traffic
from tieconv.text import count, shown
from tieconv.version import VERSION

# Send requests to the Hub with huggingface_hub's session: its login, endpoint, proxies and offline mode.
#
# Only the modules of this package import huggingface_hub.


T = TypeVar("T")

ATTEMPTS = 5
"""The most attempts for one request."""
FORGIVEN = 8 << 20
"""Received bytes that compensate for one failure of a long response."""
FIRST_PAUSE, SPREAD = 0.3, 0.25
"""Seconds before the second attempt, doubled before each further one. Up to SPREAD random seconds are added."""
CHUNK = 64 * 1024
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def is_offline() -> bool:
    """Return whether the user set HF_HUB_OFFLINE."""
    return bool(constants.is_offline_mode())


@record
class RemoteFile:
    """A file of a listed commit: its URL, its name in errors, its size in bytes and its hash."""

    url: str
    label: str
    size: int
    commit: str
    digest: str


class Client(Traffic):
    """Reads ranges with retries, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.api = HfApi(library_name="tieconv", library_version=VERSION)

    def call(self, label: str, ask: Callable[[], T]) -> T:
        """Call a method of `HfApi` and return its result. Retries if the server is busy. Raises `UnreadableError`."""
        for attempt in range(1, ATTEMPTS + 1):
            self.count(requests=1)
            try:
                with listing(label):
                    return ask()
            except session.Transport as error:
                again(error, attempt, label)
            except session.MALFORMED as error:
                raise session.malformed(label) from error
        raise AssertionError("the last attempt raises")

    def open(self, file: RemoteFile, start: int, end: int) -> Body:
        """Return a stream of the bytes ``start`` to ``end`` of a file."""
        return Body(self, file, start, end)


def again(error: Exception, attempt: int, label: str) -> None:
    """Wait before the next attempt, as long as the server asks. Raises the error if no attempt is left."""
    asked = session.retry_after(getattr(error, "response", None))
    if attempt >= ATTEMPTS or not session.retryable(error) or (asked or 0) > session.LONGEST_WAIT:
        raise session.translate(error, label, attempt) from None  # the cause's text may hold a signed address
    pause = asked if asked is not None else FIRST_PAUSE * 2 ** (attempt - 1)
    time.sleep(pause + random.uniform(0, SPREAD))  # noqa: S311 - spreads the load, not for security


class Body(Stream):
    """A range of a file. Requests it again after a failure, from where it stopped."""

    def __init__(self, client: Client, file: RemoteFile, start: int, end: int) -> None:
        super().__init__(start, end)
        self._start, self._failures = start, 0
        self._client, self._file, self._label = client, file, file.label
        self._answer: AbstractContextManager[Any] | None = None
        self._chunks: Iterator[bytes] = iter(())

    def _next(self) -> memoryview:
        try:
            if self._answer is None:
                self._open()
            chunk = next(self._chunks, b"")
            self._client.count(bytes=len(chunk))
            if not chunk:
                raise Interrupted("the response ended early")
            if len(chunk) > self.end - self.position:
                problem = f"{self._label}: the server sent more bytes than tieconv requested"
                raise UnreadableError(problem, _DISTRUST, "hub.too-many-bytes")
            return memoryview(chunk)
        except session.Transport as error:
            self.close()
            self._failures += 1
            again(error, self._failures - (self.position - self._start) // FORGIVEN, self._label)
        return memoryview(b"")

    def _open(self) -> None:
        headers = build_hf_headers(library_name="tieconv", library_version=VERSION)
        whole = self.position == 0 and self.end == self._file.size
        if not whole:
            headers["Range"] = f"bytes={self.position}-{self.end - 1}"
        self._answer = get_session().stream(
            "GET", self._file.url, headers=headers, timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        )
        try:
            with session.limits(self._file.size, {session.file_key(self._file.url): self._file.digest}):
                response = self._answer.__enter__()
        except BaseException:
            self._answer = None  # no response is open
            self._client.count(requests=1)
            raise
        self._client.count(requests=1 + len(response.history))
        hf_raise_for_status(response)
        header = constants.HUGGINGFACE_HEADER_X_REPO_COMMIT
        commits = {answer.headers.get(header) for answer in (*response.history, response)}
        for named in commits - {None, "", self._file.commit}:
            problem = f"{self._label}: the server sent commit {shown(named, 48)} instead of {self._file.commit}"
            raise UnreadableError(problem, _DISTRUST, "hub.commit")
        if response.status_code == 206:
            self._check_range(response.headers.get("Content-Range", ""))
        elif response.status_code != 200 or self.position or self.end != self._file.size:
            problem = f"{self._label}: the server sent the whole file instead of the requested range"
            hint = "fetch the model and give the local directory: hf download ORG/NAME --local-dir DIR"
            raise UnreadableError(problem, hint, "hub.range-ignored")
        length = response.headers.get("Content-Length")
        if length is not None and length != str(self.end - self.position):
            raise self._lies(f"it sends {shown(length, 24)} bytes instead of {self.end - self.position:,}")
        self._chunks = response.iter_raw(CHUNK)

    def _check_range(self, header: str) -> None:
        match = _RANGE.fullmatch(header.strip())
        if match is None or (int(match[1]), int(match[2])) != (self.position, self.end - 1):
            problem = f"{self._label}: the server sent another range than tieconv requested"
            raise UnreadableError(problem, _DISTRUST, "hub.content-range")
        if int(match[3]) != self._file.size:
            raise self._lies(f"the file has {count(int(match[3]), 'byte')}, but the listing says {self._file.size:,}")

    def _lies(self, reason: str) -> UnreadableError:
        return UnreadableError(f"{self._label}: the server contradicts itself: {reason}", _DISTRUST, "hub.size")

    def close(self) -> None:
        super().close()
        answer, self._answer, self._chunks = self._answer, None, iter(())
        if answer is not None:
            answer.__exit__(None, None, None)


_DISTRUST = "check HF_ENDPOINT and proxies, or fetch the model with hf download and inspect the directory"


class Interrupted(ConnectionError):
    """Raised if a response ends before all its bytes have arrived."""


def url_of(repo: str, name: str, commit: str) -> str:
    """Return the URL of a file of a commit, at the user's endpoint."""
    return str(hf_hub_url(repo, name, revision=commit))


# List the files of a repository at one commit, with sizes and hashes, in one request.


_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@record
class Stored:
    """One file: its size in bytes, its SHA-256 (LFS and xet files only) and its git blob hash."""

    size: int
    sha256: str | None
    blob: str

    @property
    def digest(self) -> str:
        """The hash of its content. Its length shows the kind."""
        return self.sha256 or self.blob


@record
class Snapshot:
    """A repository at a commit."""

    repo: str
    commit: str
    listing: Listing
    stored: Mapping[str, Stored]
    below: str = ""  # the directory that names are relative to, with its slash

    def label(self, name: str) -> str:
        """Return the file's name for messages."""
        return f"{shown(self.listing.source)}: {shown(name)}"

    def file(self, name: str) -> Stored:
        """Return the stored file ``name``. Raises `UnreadableError` if the repository has no such file."""
        try:
            return self.stored[name]
        except KeyError:
            problem = f"{self.label(name)} is not in the repository"
            raise UnreadableError(problem, "check the name", "hub.no-file") from None


def look_up(client: Client, source: str, repo_path: RepoPath) -> Snapshot:
    """Resolve ``repo_path`` to a commit and list its files. Raises `UnreadableError`."""
    info = client.call(
        shown(source),
        lambda: client.api.model_info(
            repo_path.repo,
            revision=repo_path.revision,
            files_metadata=True,
            timeout=float(constants.HF_HUB_ETAG_TIMEOUT),
        ),
    )
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _malformed(source, "the response has no commit hash")
    siblings: Iterable[Any] = info.siblings or ()
    files: dict[str, Stored] = {}
    for sibling in siblings:
        name, size, lfs = sibling.rfilename, sibling.size, sibling.lfs
        if not isinstance(name, str) or not is_inside(name):
            problem = f"{shown(source)} lists {shown(name)}, which is not a path inside a repository"
            raise UnsafePathError(problem, "do not trust this endpoint", "hub.escape")
        if type(size) is not int or size < 0:
            raise _malformed(source, f"the response has no size for {shown(name)}")
        sha256 = lfs.sha256 if lfs is not None else None
        if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256) and lfs.size == size):
            raise _malformed(source, f"the response has contradictory entries for {shown(name)}")
        if sha256 is None and not (isinstance(sibling.blob_id, str) and _COMMIT.fullmatch(sibling.blob_id)):
            raise _malformed(source, f"the response has no hash for {shown(name)}")
        files[name] = Stored(size, sha256, str(sibling.blob_id))
        if len(files) > MAX_FILES:
            hint = "fetch one model with hf download and give its directory"
            raise UnreadableError(f"{shown(source)} holds more than {MAX_FILES:,} files", hint, "hub.too-large")
    if repo_path.path in files:
        directory, _, name = repo_path.path.rpartition("/")
    else:
        directory, name = repo_path.path, ""
    below = f"{directory}/" if directory else ""
    named = name or None
    stored = {name.removeprefix(below): file for name, file in files.items() if name.startswith(below)}
    if repo_path.path and not stored:
        raise UnreadableError(f"{shown(source)}: no such file in the repository", "check the path", "hub.no-file")
    deep = named is None or named.endswith(".index.json")
    entries = {name: stored[name].size for name in sorted(stored) if deep or "/" not in name}
    root = f"hf://{repo_path.repo}@{commit}/{below}".removesuffix("/")
    return Snapshot(repo_path.repo, commit, Listing(source, root, named, entries, ()), stored, below)


def _malformed(source: str, why: str) -> UnreadableError:
    return UnreadableError(f"{shown(source)}: {why}", "check HF_ENDPOINT and proxies", "hub.malformed")
