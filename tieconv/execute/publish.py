"""Make a write visible in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from tieconv.checkpoint.model_files import FileState
from tieconv.errors import DestinationError, RefusedError, TieconvError, WriteFailedError
from tieconv.execute import tree
from tieconv.execute.staging import Staging, sweep
from tieconv.execute.target import stale
from tieconv.execute.tree import sync_directory, writing
from tieconv.text import ANOTHER_OUT, NEW_OUT, Hint, option, shown

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def _renameat2(old: Path, new: Path, flags: int) -> None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(old), None, str(new))


def exchange(first: Path, second: Path) -> None:
    """Swap the two names in one step. Raises `OSError` if the file system cannot."""
    _renameat2(first, second, _EXCHANGE)


def can_exchange(directory: Path) -> bool:
    """Return whether names under ``directory`` can be swapped, tried on two new directories."""
    first, second = directory / "exchange-a", directory / "exchange-b"
    os.mkdir(first)
    os.mkdir(second)
    try:
        exchange(first, second)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    finally:
        os.rmdir(first)
        os.rmdir(second)
    return True


def publish_new(staged: Path, final: Path) -> None:
    """Give ``staged`` the name ``final``, which must be free. Raises `DestinationError` if it is taken."""
    own = os.lstat(staged)
    try:
        _renameat2(staged, final, _NOREPLACE)
    except FileExistsError:
        raise _taken(final) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if os.path.lexists(final):
            raise _taken(final) from None
        os.rename(staged, final)
    _settle(staged, final, lambda: os.rename(final, staged))
    _check_published(own, final)


def publish_file(staged: Path, final: Path) -> None:
    """Rename a file to ``final``, which may be an old file or free."""
    own = os.lstat(staged)
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in (*_UNSUPPORTED, errno.ENOENT):
            raise
        os.replace(staged, final)
        _sync_both(staged, final)
    else:
        _settle(staged, final, lambda: exchange(staged, final))
    _check_published(own, final)


def publish_directory(staged: Path, final: Path, aside: Path | None, old: os.stat_result) -> Path:
    """Replace the directory ``old`` with ``staged``, and return the path that ``old`` then has.

    If the file system cannot exchange them, the old one moves to ``aside`` first. Without ``aside``, ``final`` always
    exists: raises `RefusedError` then.
    """
    own = os.lstat(staged)
    displaced = staged
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in (*_UNSUPPORTED, *(() if aside else (errno.EBUSY,))):
            raise
        if aside is None:
            raise cannot_exchange(final) from error
        _step_aside(staged, final, aside)
        displaced = aside

    def undo() -> None:
        if displaced is staged:
            exchange(staged, final)
        else:
            _step_aside(displaced, final, staged)

    # The names go back if ``final`` was not the directory that was checked.
    if not os.path.samestat(os.lstat(displaced), old):
        undo()
        raise _replaced(final)
    _settle(staged, final, undo)
    _check_published(own, final)
    return displaced


def cannot_exchange(final: Path) -> RefusedError:
    """Return the refusal for a directory that cannot be replaced in one step."""
    return RefusedError(f"this file system cannot replace {shown(final)} in one step", NEW_OUT, "in-place.exchange")


def _step_aside(staged: Path, final: Path, aside: Path) -> None:
    os.rename(final, aside)
    try:
        os.rename(staged, final)
    except OSError:
        os.rename(aside, final)
        raise


def _taken(final: Path) -> DestinationError:
    problem = f"another program created {shown(final)} while tieconv wrote it"
    return DestinationError(problem, Hint(ANOTHER_OUT, ", or ", option(overwrite=True)), "out.exists")


def _check_published(own: os.stat_result, final: Path) -> None:
    """Raise `DestinationError` if ``final`` is not what this process wrote: another program replaced it."""
    try:
        same = os.path.samestat(own, os.lstat(final))
    except FileNotFoundError:
        same = False
    if not same:
        raise _replaced(final)


def _replaced(final: Path) -> DestinationError:
    hint = f"check who may write to {shown(final.parent)}, then run the command again"
    return DestinationError(f"another program replaced {shown(final)} while tieconv wrote it", hint, "out.replaced")


def _settle(staged: Path, final: Path, undo: Callable[[], None]) -> None:
    """Make the new names durable; if the disk fails to do so, restore the old ones."""
    try:
        _sync_both(staged, final)
    except OSError:
        with suppress(OSError):
            undo()
        raise


def _sync_both(staged: Path, final: Path) -> None:
    sync_directory(final.parent)
    sync_directory(staged.parent)


# Replace a directory while other programs use it.


def check_unchanged(directory: Path, before: Mapping[str, FileState]) -> None:
    """Raise `StalePlanError` for the first file of ``directory`` that differs from ``before``."""
    now = tree.states(directory)
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name):
            raise stale(name)


def exchange_in_place(new: Path, final: Path, old: os.stat_result, before: Mapping[str, FileState]) -> None:
    """Swap the directories; files that appeared in ``old`` after ``before`` move to the new directory."""
    displaced = publish_directory(new, final, None, old)
    with suppress(OSError):
        tree.rescue(displaced, final, before)


@contextmanager
def standing(directory: Path) -> Iterator[None]:
    """Change into the new directory at the end, if the working directory is in the replaced ``directory``."""
    here = _standing_in(directory)
    yield
    if here is not None:
        with suppress(OSError):
            os.chdir(here)


def _standing_in(directory: Path) -> str | None:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return None
    return here if Path(here).is_relative_to(directory) else None


# Run a write that owns its staging directory: check, write, clean up.


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
            signals.staged = staging.held
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
        problem = f"tieconv could not remove its staging directory {shown(staging.path)}"
        hint = f"remove it by hand; {shown(staging.final)} itself is complete"
        raise WriteFailedError(problem, hint, "write.leftover") from error


# Handle signals during a write: they end it cleanly, and never in the middle of the last step.


class Interrupts:
    """Turn SIGINT into `KeyboardInterrupt`, SIGTERM and SIGHUP into `SystemExit` (128 + number).

    ``staged`` is the directory whose files are removed afterwards.
    """

    def __init__(self) -> None:
        self._shields = 0
        self._pending: int | None = None
        self._raised = False
        self.staged: Path | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._raised:
            return  # cleanup after the first signal is running
        if self._shields:
            self._pending = self._pending or number
        else:
            self._raise(number)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Delay signals to the end of the outermost block, unless that block fails by itself."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if not self._shields and self._pending is not None:
            number, self._pending = self._pending, None
            self._raise(number)

    def _raise(self, number: int) -> NoReturn:
        self._raised = True
        if number == signal.SIGINT:
            if self.staged is not None and sys.platform == "linux":
                tree.free_later(self.staged)  # before a library, such as torch's exporter, removes its own files
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Install the handlers for the block and restore the old ones after it; outside the main thread install none."""
    handler = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # None is a handler that C code installed and Python cannot restore; SIG_IGN is what nohup sets.
    caught = [number for number in numbers if signal.getsignal(number) not in (None, signal.SIG_IGN)]
    before = {number: signal.signal(number, handler.handle) for number in caught}
    if signal.getsignal(signal.SIGXFSZ) is not None:
        before[signal.SIGXFSZ] = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)
