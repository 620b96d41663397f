"""Say what a prediction rests on: the releases that the tests ran, or the source alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tieconv.text import listed

Version = tuple[int, ...]
READ = "read"
"""The basis of a prediction that follows the source; no test runs the loader."""


def basis(ran: Sequence[str], every: Collection[str], asked: Version | None) -> str:
    """Return ``read``, ``ran 0.32.2``, or where the release ``asked`` lies beside those that ran.

    ``ran`` are the releases that tests ran for the prediction, and ``every`` those of the loader. ``asked`` is the
    release that the user named.
    """
    if not ran:
        return READ
    if asked is not None and not any(_number(version)[: len(asked)] == asked for version in every):
        return _beside(every, asked)
    between = ", not the releases between them" if len(ran) > 1 else ""
    return f"ran {listed(ran)}{between}"


def _beside(every: Collection[str], asked: Version) -> str:
    lower = [version for version in every if _number(version) < asked]
    upper = [version for version in every if _number(version) > asked]
    if lower and upper:
        return f"between {max(lower, key=_number)} and {min(upper, key=_number)}, which ran"
    if lower:
        return f"newer than {max(lower, key=_number)}, which ran"
    return f"older than {min(upper, key=_number)}, which ran"


def _number(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))
