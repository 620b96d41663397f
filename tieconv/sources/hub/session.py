"""Limit the time, size, encoding and etag of every response to huggingface_hub in tieconv, and translate its errors."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from httpx2 import ByteStream, SyncByteStream
from huggingface_hub import constants, errors, set_client_factory, utils

from tieconv.errors import UnreadableError
from tieconv.sources.ranged import ListingBounds, interruptible
from tieconv.text import count, shown, size

# Translate errors of the Hub and the network to tieconv's words, because theirs may hold a token.


Transport = (errors.HTTPError, OSError, ValueError)
"""Errors of huggingface_hub and its HTTP client. A `ValueError` is a response that is not JSON."""

MALFORMED = (TypeError, AttributeError, LookupError, AssertionError, RecursionError)
"""Errors of huggingface_hub for unexpected JSON: `null`, another type, endless nesting."""

LONGEST_WAIT = 60.0
"""The most seconds that tieconv waits if a server asks. A longer wait becomes an error."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOGIN = "log in with an account that may read the model: hf auth login"


class AnswerError(OSError):
    """A refused response. ``why`` follows the name of the model or file."""

    def __init__(self, why: str, hint: str, code: str) -> None:
        super().__init__(why)
        self.why, self.hint, self.code = why, hint, code


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or ``None`` if there was no response."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, (UnreadableError, AnswerError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return False
    status = status_of(error)
    if status is not None:
        return status in BUSY
    return isinstance(error, (errors.HTTPError, ConnectionError, TimeoutError))


def retry_after(response: Any) -> float | None:
    """Return the seconds that a response asks to wait, or ``None``."""
    headers = getattr(response, "headers", None)
    if headers is None:
        return None
    header = str(headers.get("Retry-After", "")).strip()
    if header.isascii() and header.isdigit():
        return float(header[:9])
    if (at := _date(header)) is not None:
        return max(0.0, at - (_date(str(headers.get("Date", ""))) or time.time()))
    window = utils.parse_ratelimit_headers(headers)
    return float(window.reset_in_seconds) if window is not None and window.remaining == 0 else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _again_in(wait: float) -> str:
    return f"try again in {wait:.0f} seconds"


def translate(error: Exception, label: str, attempts: int = 1) -> UnreadableError:
    """Return the error for the user. ``label`` names the model or file."""
    if isinstance(error, UnreadableError):
        return error
    if isinstance(error, AnswerError):
        return UnreadableError(f"{label}: {error.why}", error.hint, error.code)
    for kind, why, hint, code in _KNOWN:
        if isinstance(error, kind):
            return UnreadableError(f"{label} {why}", hint, code)
    status = status_of(error)
    tries = f" ({count(attempts, 'attempt')})" if attempts > 1 else ""
    if status == 401:
        return UnreadableError(f"{label} needs a login", _LOGIN, "hub.unauthorized")
    if status == 403:
        return UnreadableError(f"{label}: your account may not read this model", _LOGIN, "hub.forbidden")
    if status == 429:
        wait = retry_after(getattr(error, "response", None))
        hint = _again_in(wait) if wait else "try again later, or log in: hf auth login"
        return UnreadableError(f"{label}: the Hub allows no more requests for now{tries}", hint, "hub.rate-limit")
    if status is not None:
        return UnreadableError(f"{label}: the Hub returned HTTP {status}{tries}", "try again later", "hub.http")
    if isinstance(error, ValueError):
        return malformed(label)
    if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError, errors.HTTPError)):
        return _on_disk(error, label)
    if "timeout" in type(error).__name__.lower():
        hint = "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60"
        return UnreadableError(f"{label}: the Hub did not answer in time{tries}", hint, "hub.timeout")
    hint = "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 reads the local cache"
    return UnreadableError(f"{label}: the connection to the Hub failed{tries}", hint, "hub.network")


def malformed(label: str) -> UnreadableError:
    """Return the error for a response that does not follow the Hub's API."""
    problem = f"{label}: the response of the Hub is malformed"
    return UnreadableError(problem, "check HF_ENDPOINT and proxies", "hub.malformed")


def _on_disk(error: OSError, label: str) -> UnreadableError:
    """Return the error for a failure of the disk, or for a file of the wrong size."""
    if error.errno is None:
        problem = f"{label}: the received file has the wrong size"
        return UnreadableError(problem, "check HF_ENDPOINT and proxies", "hub.size")
    why = os.strerror(error.errno).lower()
    problem = f"{label}: the local cache cannot be used: {why}"
    return UnreadableError(problem, "use a directory with free space: HF_HOME=DIR", "hub.cache")


_KNOWN: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (errors.GatedRepoError, "is gated: its owner grants access on request",
     "request access on the model's page, then log in: hf auth login", "hub.gated"),
    (errors.DisabledRepoError, "is disabled on the Hub", "ask its owner", "hub.disabled"),
    (errors.RevisionNotFoundError, "has no such revision", "give an existing branch, tag or commit", "hub.no-revision"),
    (errors.RepositoryNotFoundError, "is not on the Hub, or is private",
     "check the name; for a private model log in: hf auth login", "hub.no-model"),
    (errors.OfflineModeIsEnabled, "cannot be fetched, because HF_HUB_OFFLINE is set",
     "unset HF_HUB_OFFLINE, then try again", "hub.offline"),
    (errors.LocalEntryNotFoundError, "is not complete in the local cache, and tieconv could not reach the Hub",
     "check the network, unset HF_HUB_OFFLINE, then try again", "hub.not-cached"),
    (errors.EntryNotFoundError, "is not in the repository", "check the path, then try again", "hub.no-file"),
)  # fmt: skip


# Limit the time, size, encoding and etag of every response to huggingface_hub in tieconv.


PATIENCE = 6
"""Factor of HF_HUB_DOWNLOAD_TIMEOUT for the time limit of headers and of each `STRETCH` of bytes."""
STRETCH = 1 << 20
LARGEST_ANSWER = 128 << 20
"""The most bytes of a response that is not streamed, such as a listing."""
LARGEST_LISTING = 64 << 20
"""The most bytes of one page of a listing. 100,000 files of a repository take about 35 MB."""
MOST_VALUES = 4_000_000
"""The most values in the JSON of one page. Each takes 50 to 100 bytes of memory."""
_listing: ContextVar[ListingBounds | None] = ContextVar("listing", default=None)
_HUB = "https://huggingface.co"  # a mirror may redirect there
_LIMIT = "tieconv.limit"
_LISTS = "tieconv.lists"
_FILE = re.compile(r"/([^/]+/[^/]+/resolve/[^/]+/.+)", re.DOTALL)
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_lock = Lock()
_scopes: list[tuple[int, Mapping[str, str]]] = []
_free_at: dict[str, float] = {}


def patience() -> float:
    """Return the seconds in which a response must begin, and in which each further MiB must arrive."""
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT) * PATIENCE


@contextmanager
def limits(largest: int, hashes: Mapping[str, str] | None = None) -> Iterator[None]:
    """Limit requests of huggingface_hub inside the context. A streamed response has at most ``largest`` bytes.

    ``hashes`` maps each `file_key` to the listed hash. Outside the context huggingface_hub is unchanged.
    """
    factory = getattr(utils._http, "_GLOBAL_CLIENT_FACTORY", utils._http.default_client_factory)
    with _lock:
        if not isinstance(factory, _Factory):
            set_client_factory(_Factory(factory))
    _limited(utils.get_session())
    scope = (largest, hashes or {})
    with _lock:
        _scopes.append(scope)
    try:
        yield
    finally:
        with _lock:
            _scopes.remove(scope)


@contextmanager
def listing(label: str) -> Iterator[None]:
    """Limit what `HfApi` asks for inside the context as one listing: its pages, bytes, values, time and host."""
    reset = _listing.set(ListingBounds(label, "check HF_ENDPOINT and proxies", "hub"))
    try:
        with limits(LARGEST_LISTING):
            yield
    finally:
        _listing.reset(reset)


@contextmanager
def transferring(largest: int = LARGEST_ANSWER, hashes: Mapping[str, str] | None = None) -> Iterator[None]:
    """Transfer with `limits`, with progress bars only on a terminal, and without huggingface_hub's log.

    The log would show signed URLs. With such a URL anybody could read or write the file.
    """
    level, hide = utils.logging.get_verbosity(), not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if hide:
        utils.disable_progress_bars()
    utils.logging.set_verbosity(utils.logging.CRITICAL)
    try:
        with warnings.catch_warnings(), limits(largest, hashes):
            warnings.filterwarnings("ignore", category=UserWarning, module="huggingface_hub")
            yield
    finally:
        utils.logging.set_verbosity(level)
        if hide:
            utils.enable_progress_bars()


def file_key(address: str) -> str:
    """Return the part of a file's URL that is equal at every endpoint, or an empty string."""
    match = _FILE.search(unquote(address))
    return match[1] if match else ""


def is_limited() -> bool:
    """Return whether limits are active."""
    return bool(_scopes)


class _Factory:
    """Wraps the previous client factory and limits its clients."""

    def __init__(self, inner: Callable[[], Any]) -> None:
        self._inner = inner

    def __call__(self) -> Any:
        return _limited(self._inner())


def _limited(client: Any) -> Any:
    if not isinstance(client.send, partial):
        client.event_hooks["request"].append(_ask_plainly)
        client.event_hooks["response"].append(_receive)
        client.send = partial(_send, client.send)
    return client


def _send(send: Callable[..., Any], request: Any, *, stream: bool = False, **more: Any) -> Any:
    """Send a request and return its response. The headers, and a body without streaming, must arrive in time."""
    if not _scopes:
        return send(request, stream=stream, **more)
    wait = _free_at.get(request.url.host, 0) - time.monotonic()
    if wait > 0:
        time.sleep(wait)
    bounds = _listing.get()
    unstreamed = LARGEST_ANSWER if bounds is None else LARGEST_LISTING
    request.extensions[_LIMIT] = max(largest for largest, _ in list(_scopes)) if stream else unstreamed
    request.extensions[_LISTS] = bounds
    length = request.headers.get("Content-Length", "0")
    stretches = 1 + (int(length) // STRETCH if length.isdigit() else 0)
    sent = partial(send, request, stream=stream, **more)
    response = interruptible(sent, patience() * stretches, overdue, lambda answer: answer.close())
    if bounds is not None and response.status_code < 300:
        bounds.page(str(response.request.url))
        if sum(map(response.content.count, b",[{")) > MOST_VALUES:
            problem = f"the server sent more than {MOST_VALUES:,} values"
            raise AnswerError(problem, "check HF_ENDPOINT and proxies", "hub.too-large")
    return response


def overdue() -> AnswerError:
    """Return the error for a response that is too slow."""
    problem = f"the Hub did not send {size(STRETCH)}, or the rest, within {patience():.0f} seconds"
    return AnswerError(problem, "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60", "hub.deadline")


def _ask_plainly(request: Any) -> None:
    """Request no compression, because compressed data can expand without limit. Send the token only to the Hub.

    A response names the next page, the check of an upload, and where tokens of Xet are made. huggingface_hub sends the
    token to each of these addresses.
    """
    if not _scopes:
        return
    request.headers["Accept-Encoding"] = "identity"
    if _origin(str(request.url)) not in (_origin(constants.ENDPOINT), _origin(_HUB)):
        request.headers.pop("Authorization", None)
        if request.extensions.get(_LISTS) is not None:
            problem = "the server redirects to another host, which tieconv does not follow"
            raise AnswerError(problem, "check HF_ENDPOINT and proxies", "hub.redirect")


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _receive(response: Any) -> None:
    """Refuse a bad response, redirects included, before its body is read."""
    if not _scopes:
        return
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        problem = "the server sent a compressed response, which tieconv did not request"
        raise AnswerError(problem, "check HF_ENDPOINT and proxies", "hub.encoding")
    if response.status_code >= 400:
        _heed(response)
        response.stream.close()
        response.stream = ByteStream(b"")  # tieconv never repeats the server's error text, so it does not read it
        return
    key = file_key(response.request.url.path)
    for _, hashes in list(_scopes):
        if key in hashes and (why := contradiction(response, hashes[key])):
            name = f"{shown(key.split('/', 4)[-1])}: " if len(hashes) > 1 else ""
            raise AnswerError(f"{name}{why}", "check HF_ENDPOINT and proxies", "hub.etag")
    response.stream = _Timed(response.stream, int(response.request.extensions.get(_LIMIT, LARGEST_ANSWER)))


def _heed(response: Any) -> None:
    """Remember how long a busy server asks to wait. Raises `AnswerError` if that is too long."""
    wait = retry_after(response) if response.status_code in BUSY else None
    if wait is None:
        return
    if wait > LONGEST_WAIT:
        raise AnswerError("the Hub allows no more requests for now", _again_in(wait), "hub.rate-limit")
    _free_at[response.request.url.host] = time.monotonic() + wait


def contradiction(response: Any, known: str) -> str:
    """Return how a response's etag contradicts the listed hash ``known``, or an empty string.

    The storage behind the Hub uses other etags, which are ignored.
    """
    linked = _normal(response.headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_ETAG))
    etag = linked
    if etag is None and constants.HUGGINGFACE_HEADER_X_REPO_COMMIT in response.headers:
        etag = _normal(response.headers.get("ETag"))
    if etag is None or etag == known:
        return ""
    if linked is None and (not _HASH.fullmatch(etag) or len(etag) != len(known)):
        return ""  # a mirror with another kind of etag
    return f"the server offers a file with the hash {shown(etag, 64)}, but the listing has {known}"


def _normal(etag: str | None) -> str | None:
    return etag.strip().removeprefix("W/").strip('"').lower() if etag else None


class _Timed(SyncByteStream):
    """A body with limits on time and bytes (``limit``). The time that its reader needs does not count."""

    def __init__(self, inner: Any, limit: int) -> None:
        self._inner, self._limit = inner, limit

    def __iter__(self) -> Iterator[bytes]:
        total, stretch, began = 0, 0, time.monotonic()
        for piece in self._inner:
            total += len(piece)
            stretch += len(piece)
            if total > self._limit:
                problem = f"the server sent more than {self._limit:,} bytes"
                raise AnswerError(problem, "check HF_ENDPOINT and proxies", "hub.too-long")
            if time.monotonic() - began > patience():
                raise overdue()
            if stretch >= STRETCH:
                stretch, began = 0, time.monotonic()
            paused = time.monotonic()
            yield piece
            began += time.monotonic() - paused

    def close(self) -> None:
        self._inner.close()
