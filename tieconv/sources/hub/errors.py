"""What the Hub and the network answer, as a sentence and a hint; never in their words, which may hold a token."""

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
"""What huggingface_hub and the client below it raise; a `ValueError` is an answer that is no JSON."""

MALFORMED = (TypeError, AttributeError, LookupError, AssertionError, RecursionError)
"""What huggingface_hub raises for JSON that is not what it asked for: `null`, another type, nested without end."""

LONGEST_WAIT = 60.0
"""Seconds that a server may ask us to wait; who asks for more is told to the user instead."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOGIN = "log in with an account that may read it: hf auth login"


class AnswerError(OSError):
    """An answer that is refused before it is used. ``why`` follows the name of the model, or of its file."""

    def __init__(self, why: str, hint: str, code: str) -> None:
        super().__init__(why)
        self.why, self.hint, self.code = why, hint, code


def status_of(error: BaseException) -> int | None:
    """The status of the answer that an error is about, where there was an answer."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def retryable(error: BaseException) -> bool:
    """Whether the same request may fare better later."""
    if isinstance(error, (UnreadableError, AnswerError, OfflineModeIsEnabled, LocalEntryNotFoundError)):
        return False
    status = status_of(error)
    if status is not None:
        return status in BUSY
    return isinstance(error, (HTTPError, ConnectionError, TimeoutError))


def retry_after(response: Any) -> float | None:
    """The seconds that an answer asks to wait, in either of the Hub's ways; ``None`` where it does not say."""
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
    """Seconds since 1970 of a date as HTTP writes it."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def postponed(wait: float) -> AnswerError:
    """The error of a server that asks for a longer wait than `LONGEST_WAIT`."""
    return AnswerError("the Hub allows no more requests for now", _again_in(wait), "hub.rate-limit")


def _again_in(wait: float) -> str:
    return f"try again in {wait:.0f} seconds"


def rate_limited(label: str, wait: float | None, tries: str = "") -> UnreadableError:
    """The error of a server that wants no request for ``wait`` seconds."""
    hint = _again_in(wait) if wait else "try again later, or log in: hf auth login"
    return UnreadableError(f"{label}: the Hub allows no more requests for now{tries}", hint, "hub.rate-limit")


def translate(error: Exception, label: str, attempts: int = 1) -> UnreadableError:
    """The error for the user; ``label`` is the model, or its file."""
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
        return UnreadableError(f"{label} may not be read with this login", _LOGIN, "hub.forbidden")
    if status == 429:
        return rate_limited(label, retry_after(getattr(error, "response", None)), tries)
    if status is not None:
        return UnreadableError(f"{label}: the Hub answers HTTP {status}{tries}", "try again later", "hub.http")
    if isinstance(error, ValueError):
        return malformed(label)
    if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError, HTTPError)):
        return _on_disk(error, label)
    if "timeout" in type(error).__name__.lower():
        hint = "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60"
        return UnreadableError(f"{label}: the Hub did not answer in time{tries}", hint, "hub.timeout")
    hint = "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what the cache holds"
    return UnreadableError(f"{label}: the connection to the Hub failed{tries}", hint, "hub.network")


def malformed(label: str) -> UnreadableError:
    """The error of an answer that is not what the Hub's API gives."""
    return UnreadableError(
        f"{label}: the answer of the Hub is malformed", "check HF_ENDPOINT and proxies", "hub.malformed"
    )


def _on_disk(error: OSError, label: str) -> UnreadableError:
    """What the disk refuses, or huggingface_hub after it counted the bytes of a file."""
    if error.errno is None:
        return UnreadableError(
            f"{label}: what arrived is not the file that was listed", "check HF_ENDPOINT and proxies", "hub.size"
        )
    why = os.strerror(error.errno).lower()
    return UnreadableError(
        f"{label}: the local cache cannot be used: {why}", "name a directory with room: HF_HOME=DIR", "hub.cache"
    )


_KNOWN: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (
        GatedRepoError,
        "is gated: its owner gives access on request",
        "ask for access on its page, then log in: hf auth login",
        "hub.gated",
    ),
    (DisabledRepoError, "was disabled by the Hub", "ask its owner", "hub.disabled"),
    (
        RevisionNotFoundError,
        "has no such revision",
        "name a branch, a tag or a commit that is there",
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
        "cannot be reached: HF_HUB_OFFLINE forbids the network",
        "unset HF_HUB_OFFLINE, then try again",
        "hub.offline",
    ),
    (
        LocalEntryNotFoundError,
        "is not complete in the local cache, and the Hub could not be reached",
        "check the network, unset HF_HUB_OFFLINE, then try again",
        "hub.not-cached",
    ),
    (EntryNotFoundError, "is not in the repository", "was it removed meanwhile? Try again", "hub.no-file"),
)

__all__ = ["HfHubHTTPError", "Transport", "retry_after", "retryable", "status_of", "translate"]
