"""Send requests to the Hub with huggingface_hub's session: its login, endpoint, proxies and offline mode.

Only the modules of this package import huggingface_hub.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import huggingface_hub.constants as constants  # first: a bad variable then raises, and the package prints nothing
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.sources.hub.errors import LONGEST_WAIT, MALFORMED, Transport, malformed, retry_after, retryable, translate
from tieconv.sources.hub.session import file_key, limits, listing
from tieconv.sources.ranged.traffic import Traffic, read_range
from tieconv.text import shown
from tieconv.version import VERSION

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
            except Transport as error:
                again(error, attempt, label)
            except MALFORMED as error:
                raise malformed(label) from error
        raise AssertionError("the last attempt raises")

    def open(self, file: RemoteFile, start: int, end: int) -> Body:
        """Return a stream of the bytes ``start`` to ``end`` of a file."""
        return Body(self, file, start, end)

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Return the bytes ``start`` to ``end`` of a file. Raises `UnreadableError`."""
        return read_range(self.open(file, start, end))


def again(error: Exception, attempt: int, label: str) -> None:
    """Wait before the next attempt, as long as the server asks. Raises the error if no attempt is left."""
    asked = retry_after(getattr(error, "response", None))
    if attempt >= ATTEMPTS or not retryable(error) or (asked or 0) > LONGEST_WAIT:
        raise translate(error, label, attempt) from None  # the cause's text may hold a signed address
    pause = asked if asked is not None else FIRST_PAUSE * 2 ** (attempt - 1)
    time.sleep(pause + random.uniform(0, SPREAD))  # noqa: S311 - spreads the load, not for security


class Body:
    """Streams the bytes ``start`` to ``end`` of a file. Requests them on first use, and again after a failure."""

    def __init__(self, client: Client, file: RemoteFile, start: int, end: int) -> None:
        self.position, self.end = start, end
        self._start, self._failures = start, 0
        self._client, self._file, self._label = client, file, file.label
        self._answer: AbstractContextManager[Any] | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._left = memoryview(b"")

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``. Raises `UnreadableError` if the server does not send what it listed."""
        done = 0
        while done < len(buffer):
            if not self._left:
                try:
                    self._next()
                except Transport as error:
                    self.close()
                    self._failures += 1
                    again(error, self._failures - (self.position - self._start) // FORGIVEN, self._label)
                    continue
            piece = self._left[: len(buffer) - done]
            buffer[done : done + len(piece)] = piece
            self._left = self._left[len(piece) :]
            self.position += len(piece)
            done += len(piece)

    def _next(self) -> None:
        """Read the next chunk, from a new response if none is open."""
        if self._answer is None:
            self._open()
        chunk = next(self._chunks, b"")
        self._client.count(bytes=len(chunk))
        if not chunk:
            raise Interrupted("the response ended early")
        if len(chunk) > self.end - self.position:
            raise UnreadableError(
                f"{self._label}: the server sent more bytes than tieconv requested", _DISTRUST, "hub.too-many-bytes"
            )
        self._left = memoryview(chunk)

    def _open(self) -> None:
        headers = build_hf_headers(library_name="tieconv", library_version=VERSION)
        whole = self.position == 0 and self.end == self._file.size
        if not whole:
            headers["Range"] = f"bytes={self.position}-{self.end - 1}"
        self._answer = get_session().stream(
            "GET", self._file.url, headers=headers, timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        )
        try:
            with limits(self._file.size, {file_key(self._file.url): self._file.digest}):
                response = self._answer.__enter__()
        except BaseException:
            self._answer = None  # no response is open
            self._client.count(requests=1)
            raise
        self._client.count(requests=1 + len(response.history))
        self._check(response)
        self._chunks = response.iter_raw(CHUNK)

    def _check(self, response: Any) -> None:
        """Refuse a response with another range, file size or commit than the request."""
        hf_raise_for_status(response)
        commits = {_commit_of(answer) for answer in (*response.history, response)} - {None, self._file.commit}
        for named in commits:
            raise UnreadableError(
                f"{self._label}: the server sent commit {shown(named, 48)} instead of {self._file.commit}",
                _DISTRUST,
                "hub.commit",
            )
        if response.status_code == 206:
            self._check_range(response.headers.get("Content-Range", ""))
        elif response.status_code != 200 or self.position or self.end != self._file.size:
            raise UnreadableError(
                f"{self._label}: the server sent the whole file instead of the requested range",
                "fetch the model and give the local directory: hf download ORG/NAME --local-dir DIR",
                "hub.range-ignored",
            )
        length = response.headers.get("Content-Length")
        if length is not None and length != str(self.end - self.position):
            raise self._lies(f"it sends {shown(length, 24)} bytes instead of {self.end - self.position:,}")

    def _check_range(self, header: str) -> None:
        match = _RANGE.fullmatch(header.strip())
        if match is None or (int(match[1]), int(match[2])) != (self.position, self.end - 1):
            raise UnreadableError(
                f"{self._label}: the server sent another range than tieconv requested",
                _DISTRUST,
                "hub.content-range",
            )
        if int(match[3]) != self._file.size:
            raise self._lies(f"the file has {int(match[3]):,} bytes, but the listing says {self._file.size:,}")

    def _lies(self, reason: str) -> UnreadableError:
        return UnreadableError(f"{self._label}: the server contradicts itself: {reason}", _DISTRUST, "hub.size")

    def close(self) -> None:
        """Close the connection without reading the rest."""
        answer, self._answer, self._chunks, self._left = self._answer, None, iter(()), memoryview(b"")
        if answer is not None:
            answer.__exit__(None, None, None)


_DISTRUST = "check HF_ENDPOINT and proxies, or fetch the model with hf download and inspect the directory"


class Interrupted(ConnectionError):
    """Raised if a response ends before all its bytes have arrived."""


def _commit_of(response: Any) -> str | None:
    commit = response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
    return str(commit) if commit else None


def url_of(repo: str, name: str, commit: str) -> str:
    """Return the URL of a file of a commit, at the user's endpoint."""
    return str(hf_hub_url(repo, name, revision=commit))
