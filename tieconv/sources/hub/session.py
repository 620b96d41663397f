"""Limit the time, size, encoding and etag of every response to huggingface_hub in tieconv."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from httpx2 import SyncByteStream
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils import (
    _http,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    get_session,
    logging,
)

from tieconv.sources.hub.errors import BUSY, LONGEST_WAIT, AnswerError, postponed, retry_after
from tieconv.sources.ranged.traffic import ListingBounds
from tieconv.sources.threads import interruptible
from tieconv.text import shown, size

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
    _install()
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
    level, hide = logging.get_verbosity(), not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), limits(largest, hashes):
            warnings.filterwarnings("ignore", category=UserWarning, module="huggingface_hub")
            yield
    finally:
        logging.set_verbosity(level)
        if hide:
            enable_progress_bars()


def file_key(address: str) -> str:
    """Return the part of a file's URL that is equal at every endpoint, or an empty string."""
    match = _FILE.search(unquote(address))
    return match[1] if match else ""


def is_limited() -> bool:
    """Return whether limits are active."""
    return bool(_scopes)


def _install() -> None:
    """Limit the current HTTP client of huggingface_hub, and each client that replaces it."""
    factory = getattr(_http, "_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)
    with _lock:
        if not isinstance(factory, _Factory):
            set_client_factory(_Factory(factory))
    _limited(get_session())


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
    response = interruptible(partial(send, request, stream=stream, **more), patience() * stretches, overdue, _close)
    if bounds is not None and response.status_code < 300:
        bounds.page(str(response.request.url))
        if sum(map(response.content.count, b",[{")) > MOST_VALUES:
            raise AnswerError(
                f"the server sent more than {MOST_VALUES:,} values", "check HF_ENDPOINT and proxies", "hub.too-large"
            )
    return response


def _close(response: Any) -> None:
    response.close()


def overdue() -> AnswerError:
    """Return the error for a response that is too slow."""
    return AnswerError(
        f"the Hub did not send {size(STRETCH)}, or the rest, within {patience():.0f} seconds",
        "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60",
        "hub.deadline",
    )


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
    """Return scheme, host and port of an address."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _receive(response: Any) -> None:
    """Refuse a bad response, redirects included, before its body is read."""
    if not _scopes:
        return
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise AnswerError(
            "the server sent a compressed response, which tieconv did not request",
            "check HF_ENDPOINT and proxies",
            "hub.encoding",
        )
    if response.status_code >= 400:
        _heed(response)
        response.stream.close()
        response.stream = _Nothing()  # tieconv never repeats the server's error text, so it does not read it
        return
    _check_file(response)
    response.stream = _Timed(response.stream, int(response.request.extensions.get(_LIMIT, LARGEST_ANSWER)))


def _heed(response: Any) -> None:
    """Remember how long a busy server asks to wait. Raises `AnswerError` if that is too long."""
    wait = retry_after(response) if response.status_code in BUSY else None
    if wait is None:
        return
    if wait > LONGEST_WAIT:
        raise postponed(wait)
    _free_at[response.request.url.host] = time.monotonic() + wait


def _check_file(response: Any) -> None:
    key = file_key(response.request.url.path)
    for _, hashes in list(_scopes):
        if key in hashes and (why := contradiction(response, hashes[key])):
            name = f"{shown(key.split('/', 4)[-1])}: " if len(hashes) > 1 else ""
            raise AnswerError(f"{name}{why}", "check HF_ENDPOINT and proxies", "hub.etag")


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


class _Nothing(SyncByteStream):
    """An empty body, for a response that is not read."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


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
                raise AnswerError(
                    f"the server sent more than {self._limit:,} bytes", "check HF_ENDPOINT and proxies", "hub.too-long"
                )
            if time.monotonic() - began > patience():
                raise overdue()
            if stretch >= STRETCH:
                stretch, began = 0, time.monotonic()
            paused = time.monotonic()
            yield piece
            began += time.monotonic() - paused

    def close(self) -> None:
        self._inner.close()
