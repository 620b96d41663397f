"""What the Hub and the network answer, as a sentence and a hint; never in their words, which may hold a token."""

from __future__ import annotations

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

from tieconv.errors import UnreadableError
from tieconv.text import count

Transport = (HTTPError, OSError, ValueError)
"""What huggingface_hub and the client below it raise; a `ValueError` is an answer that is no JSON."""

_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOGIN = "log in with an account that may read it: hf auth login"


def status_of(error: BaseException) -> int | None:
    """The status of the answer that an error is about, where there was an answer."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def retryable(error: BaseException) -> bool:
    """Whether the same request may fare better later."""
    if isinstance(error, (UnreadableError, OfflineModeIsEnabled, LocalEntryNotFoundError)):
        return False
    status = status_of(error)
    if status is not None:
        return status in _BUSY
    return isinstance(error, (HTTPError, ConnectionError, TimeoutError))


def retry_after(error: BaseException) -> float | None:
    """The seconds that the server asks to wait; ``None`` where it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    given = str(headers.get("Retry-After", "")).strip() if headers is not None else ""
    return float(given) if given.isascii() and given.isdigit() and len(given) < 9 else None


def translate(error: Exception, what: str, attempts: int = 1) -> UnreadableError:
    """The error for the user; ``what`` is the model, or its file."""
    if isinstance(error, UnreadableError):
        return error
    for kind, why, hint, code in _KNOWN:
        if isinstance(error, kind):
            return UnreadableError(f"{what} {why}", hint, code)
    status = status_of(error)
    tries = f" ({count(attempts, 'attempt')})" if attempts > 1 else ""
    if status == 401:
        return UnreadableError(f"{what} needs a login", _LOGIN, "hub.unauthorized")
    if status == 403:
        return UnreadableError(f"{what} may not be read with this login", _LOGIN, "hub.forbidden")
    if status == 429:
        wait = retry_after(error)
        hint = f"try again in {wait:.0f} seconds" if wait else "try again later, or log in: hf auth login"
        return UnreadableError(f"{what}: the Hub allows no more requests for now{tries}", hint, "hub.rate-limit")
    if status is not None:
        return UnreadableError(f"{what}: the Hub answers HTTP {status}{tries}", "try again later", "hub.http")
    if isinstance(error, ValueError):
        return UnreadableError(
            f"{what}: the answer of the Hub is malformed", "check HF_ENDPOINT and proxies", "hub.malformed"
        )
    if "timeout" in type(error).__name__.lower():
        hint = "try again, or allow more time: HF_HUB_DOWNLOAD_TIMEOUT=60"
        return UnreadableError(f"{what}: the Hub did not answer in time{tries}", hint, "hub.timeout")
    hint = "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what the cache holds"
    return UnreadableError(f"{what}: the connection to the Hub failed{tries}", hint, "hub.network")


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
        "unset HF_HUB_OFFLINE, or fetch it first: hf download",
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
