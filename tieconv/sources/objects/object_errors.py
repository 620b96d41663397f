"""Translate errors of obstore to tieconv's words, because theirs hold addresses and text of the server."""

from __future__ import annotations

import re

from obstore import exceptions

from tieconv.errors import UnreadableError

OBSTORE = (exceptions.BaseError, OSError, ValueError, AssertionError)
"""Errors of obstore and of its credential providers."""

_STATUS = re.compile(r"status code: (\d{3})\b")
_RETRIES = re.compile(r"after (\d+) retries")
_ENDPOINT = "check the endpoint variables and proxies"
_LOGIN = "check the credentials in the environment; `tieconv` uses those of the AWS, Google and Azure tools"

_KINDS: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (FileNotFoundError, "is not in the object store", "check the address", "objects.absent"),
    (exceptions.PreconditionError, "was replaced while tieconv read it", "run the command again", "objects.changed"),
    (exceptions.PermissionDeniedError, "may not be read with these credentials", _LOGIN, "objects.forbidden"),
    (exceptions.UnauthenticatedError, "may not be read without valid credentials", _LOGIN, "objects.unauthorized"),
    (
        exceptions.InvalidPathError,
        "holds a key that is not a relative path, such as one with .. or a control character",
        "copy the model to a prefix with ordinary names",
        "objects.key",
    ),
)
_STATUSES: dict[str, type[BaseException]] = {
    "401": exceptions.UnauthenticatedError,
    "403": exceptions.PermissionDeniedError,
    "404": FileNotFoundError,
}
"""Errors of a listing, for which obstore has no type."""
_TEXTS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"169\.254\.169\.254|metadata\.google\.internal|/metadata/|security-credentials|CredentialProvider",
        "may not be read: tieconv found no credentials",
        "log in with the tool of your cloud, or set its variables; for a public bucket: AWS_SKIP_SIGNATURE=true",
        "objects.no-credentials",
    ),
    (
        "redirect without LOCATION",
        "is in a bucket of another region",
        "set AWS_REGION to the region of the bucket",
        "objects.region",
    ),
    (
        "non-partial response",
        "cannot be read by ranges: the server sent the whole file",
        "copy the model to a local directory",
        "objects.range-ignored",
    ),
    (
        r"Requested \d+\.\.\d+, got|Content-Range|Wanted range",
        "cannot be read: the server sent another range than tieconv requested",
        _ENDPOINT,
        "objects.content-range",
    ),
    (
        "list response",
        "cannot be listed: the response of the server is malformed",
        _ENDPOINT,
        "objects.malformed",
    ),
    (
        "TimedOut|kind: Timeout",
        "could not be read: the server did not answer in time",
        "try again later",
        "objects.timeout",
    ),
)


def translate(error: BaseException, label: str) -> UnreadableError:
    """Return the error for the user. ``label`` names the model or file."""
    if isinstance(error, UnreadableError):
        return error
    for kind, why, hint, code in _KINDS:
        if isinstance(error, kind):
            return UnreadableError(f"{label} {why}", hint, code)
    text = str(error)
    for pattern, why, hint, code in _TEXTS:
        if re.search(pattern, text):
            return UnreadableError(f"{label} {why}", hint, code)
    retries = _RETRIES.search(text)
    tries = f" ({int(retries[1]) + 1} attempts)" if retries and int(retries[1]) else ""
    status = _STATUS.search(text)
    if status and (known := _STATUSES.get(status[1])):
        return translate(known(), label)
    if status:
        return UnreadableError(
            f"{label}: the object store returned HTTP {status[1]}{tries}", "try again later", "objects.http"
        )
    if isinstance(error, exceptions.UnknownConfigurationKeyError) or ("Http" not in text and "HTTP" not in text):
        return UnreadableError(
            f"{label} cannot be opened with the settings of this object store",
            "check the variables of its endpoint, account and credentials",
            "objects.settings",
        )
    return UnreadableError(
        f"{label}: the connection to the object store failed{tries}",
        "check the network, the endpoint variables and proxies",
        "objects.network",
    )
