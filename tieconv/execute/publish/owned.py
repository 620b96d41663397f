"""Run a write that owns its staging directory: check, write, clean up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tieconv.errors import TieconvError, WriteFailedError
from tieconv.execute.publish.interrupts import Interrupts
from tieconv.execute.staging import Staging, sweep
from tieconv.execute.system_errors import writing
from tieconv.text import shown

T = TypeVar("T")
STOPS = (KeyboardInterrupt, SystemExit, WriteFailedError)
"""What stops a write and says nothing against the files that are already written."""


def checked(final: Path, check: Callable[[], None]) -> None:
    """Run ``check``; if it refuses, remove what a killed run left beside ``final``."""
    try:
        check()
    except TieconvError:
        if not sweep(final):
            raise
        check()


def owning(final: Path, signals: Interrupts, write: Callable[[Staging], T], *, resume: bool = False) -> T:
    """Return the result of ``write``, which gets the staging directory of ``final``; remove that directory in any case.

    With ``resume``, ``write`` gets the directory of a killed run. A signal or the system leaves it to the next run.
    Not a context manager: a signal between its entry and its body would leave the directory behind. Raises
    `DestinationError` if a live process has the directory. Raises `WriteFailedError` if the system stops the write or
    the directory cannot be removed after it.
    """
    staging: Staging | None = None
    try:
        with signals.shielded(), writing(final.name, final.parent, 0):
            staging = Staging(final, resume=resume)
        with writing(final.name, final.parent, 0):
            made = write(staging)
    except BaseException as error:
        if staging is not None:
            with signals.shielded(), suppress(OSError):
                if resume and isinstance(error, STOPS):
                    staging.leave()
                else:
                    staging.release()
        raise
    with signals.shielded():
        _release(staging)
    return made


def _release(staging: Staging) -> None:
    try:
        staging.release()
    except OSError as error:
        raise WriteFailedError(
            f"tieconv could not remove its staging directory {shown(staging.path)}",
            f"remove it by hand; {shown(staging.final)} itself is complete",
            "write.leftover",
        ) from error
