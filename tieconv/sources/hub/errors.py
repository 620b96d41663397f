"""Translate errors of the Hub and the network to tieconv's words, because theirs may hold a token."""

from __future__ import annotations

import os
import time
from email.utils import parsedate_to_datetime
from typing import Any

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers

from tieconv.errors import UnreadableError
from tieconv.text import count

Transport = (HTTPError, OSError, ValueError)
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
    if isinstance(error, (UnreadableError, AnswerError, OfflineModeIsEnabled, LocalEntryNotFoundError)):
        return False
    status = status_of(error)
    if status is not None:
        return status in BUSY
    return isinstance(error, (HTTPError, ConnectionError, TimeoutError))


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
    window = parse_ratelimit_headers(headers)
    return float(window.reset_in_seconds) if window is not None and window.remaining == 0 else None


def _date(text: str) -> float | None:
    """Convert an HTTP date to seconds since 1970."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def postponed(wait: float) -> AnswerError:
    """Return the error for a server that asks for a longer wait than `LONGEST_WAIT`."""
    return AnswerError("the Hub allows no more requests for now", _again_in(wait), "hub.rate-limit")


def _again_in(wait: float) -> str:
    return f"try again in {wait:.0f} seconds"


def rate_limited(label: str, wait: float | None, tries: str = "") -> UnreadableError:
    """Return the error for a server that refuses requests for ``wait`` seconds."""
    hint = _again_in(wait) if wait else "try again later, or log in: hf auth login"
    return UnreadableError(f"{label}: the Hub allows no more requests for now{tries}", hint, "hub.rate-limit")


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
        return rate_limited(label, retry_after(getattr(error, "response", None)), tries)
    if status is not None:
        return UnreadableError(f"{label}: the Hub returned HTTP {status}{tries}", "try again later", "hub.http")
    if isinstance(error, ValueError):
        return malformed(label)
    if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError, HTTPError)):
        return _on_disk(error, label)
    if "timeout" in type(error).__name__.lower():
        hint = "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60"
        return UnreadableError(f"{label}: the Hub did not answer in time{tries}", hint, "hub.timeout")
    hint = "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 reads the local cache"
    return UnreadableError(f"{label}: the connection to the Hub failed{tries}", hint, "hub.network")


def malformed(label: str) -> UnreadableError:
    """Return the error for a response that does not follow the Hub's API."""
    return UnreadableError(
        f"{label}: the response of the Hub is malformed", "check HF_ENDPOINT and proxies", "hub.malformed"
    )


def _on_disk(error: OSError, label: str) -> UnreadableError:
    """Return the error for a failure of the disk, or for a file of the wrong size."""
    if error.errno is None:
        return UnreadableError(
            f"{label}: the received file has the wrong size", "check HF_ENDPOINT and proxies", "hub.size"
        )
    why = os.strerror(error.errno).lower()
    return UnreadableError(
        f"{label}: the local cache cannot be used: {why}", "use a directory with free space: HF_HOME=DIR", "hub.cache"
    )


_KNOWN: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (
        GatedRepoError,
        "is gated: its owner grants access on request",
        "request access on the model's page, then log in: hf auth login",
        "hub.gated",
    ),
    (DisabledRepoError, "is disabled on the Hub", "ask its owner", "hub.disabled"),
    (
        RevisionNotFoundError,
        "has no such revision",
        "give an existing branch, tag or commit",
        "hub.no-revision",
    ),
    (
        RepositoryNotFoundError,
        "is not on the Hub, or is private",
        "check the name; for a private model log in: hf auth login",
        "hub.no-model",
    ),
    (
        OfflineModeIsEnabled,
        "cannot be fetched, because HF_HUB_OFFLINE is set",
        "unset HF_HUB_OFFLINE, then try again",
        "hub.offline",
    ),
    (
        LocalEntryNotFoundError,
        "is not complete in the local cache, and tieconv could not reach the Hub",
        "check the network, unset HF_HUB_OFFLINE, then try again",
        "hub.not-cached",
    ),
    (EntryNotFoundError, "is not in the repository", "check the path, then try again", "hub.no-file"),
)

__all__ = ["HfHubHTTPError", "Transport", "retry_after", "retryable", "status_of", "translate"]
